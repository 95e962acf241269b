// What a tensor-parallel rank holds of a parameter that is declared whole.
#pragma once

#include <string>

#include "model/spec.h"
#include "params/param_store.h"
#include "shard/tensor/tensor_group.h"

namespace meshtrain {

// Part part.rank of dimension `dim`, cut into part.ranks equal pieces; what does not divide is padded, so that
// the last pieces reach beyond the whole.
ParamDecl cut(ParamDecl whole, int dim, const TensorPart& part);

// The whole on every rank; `partial`: each rank sees a part of the gradient.
ParamDecl copied(ParamDecl whole, const TensorPart& part, bool partial);

// The embedding's or the head's matrix [vocab, hidden], cut by rows. Any vocabulary can be cut.
ParamDecl vocabulary_matrix(const ModelSpec& spec, std::string name, const TensorPart& part);

}  // namespace meshtrain
