#include "model/cut.h"

#include <utility>

namespace meshtrain {

ParamDecl cut(ParamDecl whole, int dim, const TensorPart& part) {
  if (part.ranks == 1) return whole;
  const std::int64_t held = (whole.shape[dim] + part.ranks - 1) / part.ranks;
  whole.slice = {.whole = whole.shape, .dim = dim, .first = held * part.rank};
  whole.shape[dim] = held;
  return whole;
}

ParamDecl copied(ParamDecl whole, const TensorPart& part, bool partial) {
  if (part.ranks == 1) return whole;
  whole.copies = {.ranks = part.ranks, .first = part.rank == 0, .partial = partial};
  return whole;
}

ParamDecl vocabulary_matrix(const ModelSpec& spec, std::string name, const TensorPart& part) {
  return cut({.name = std::move(name), .shape = {spec.vocab, spec.hidden}, .deviation = spec.init_std}, 0,
             part);
}

}  // namespace meshtrain
