// The CPU back end of ops/optimizer_update.h: the same contracts, arguments already checked.
#pragma once

#include "ops/optimizer_update.h"

namespace meshtrain::ops::cpu {

void sgd_update(Stream& stream, const UpdateTensors& t, const Tensor& velocity, const SgdUpdate& u);
void adagrad_update(Stream& stream, const UpdateTensors& t, const Tensor& sum, const AdagradUpdate& u);
void rmsprop_update(Stream& stream, const UpdateTensors& t, const Tensor& square_average,
                    const Tensor& velocity, const RmsPropUpdate& u);
void adam_update(Stream& stream, const UpdateTensors& t, const Tensor& m, const Tensor& v, const AdamUpdate& u);

}  // namespace meshtrain::ops::cpu
