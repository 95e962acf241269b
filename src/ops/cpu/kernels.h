// The CPU back end of the operations of ops/*.h: the same contracts, arguments already checked.
#pragma once

#include "ops/activation.h"
#include "ops/cross_entropy.h"
#include "ops/elementwise.h"
#include "ops/embedding.h"
#include "ops/matmul.h"
#include "ops/norm.h"
#include "ops/rope.h"
#include "ops/sharded_cross_entropy.h"

namespace meshtrain::ops::cpu {

void gelu_forward(Stream& stream, const Tensor& x, const Tensor& y);
void gelu_backward(Stream& stream, const Tensor& x, const Tensor& dy, const Tensor& dx);
void swiglu_forward(Stream& stream, const Tensor& gate_up, const Tensor& y);
void swiglu_backward(Stream& stream, const Tensor& gate_up, const Tensor& dy, const Tensor& dgate_up);

void norm_forward(Stream& stream, const NormForward& args);
void norm_backward_input(Stream& stream, const NormBackwardInput& args);
void norm_backward_weight(Stream& stream, const NormBackwardWeight& args);

void column_sum(Stream& stream, const Tensor& x, const Tensor& out, bool accumulate);

void rope(Stream& stream, const Tensor& x, const Tensor& cos_sin, RopeDirection direction);

void embedding_forward(Stream& stream, const Tensor& tokens, const Tensor& table, const Tensor& positions,
                       std::int64_t seq, std::int64_t first_position, const Tensor& out, std::int64_t first_id);
void embedding_backward(Stream& stream, const Tensor& tokens, const Tensor& dout, const Tensor& dtable,
                        std::int64_t first_id);
void position_backward(Stream& stream, const Tensor& dout, std::int64_t seq, const Tensor& dpositions);

// Each is ignored or in [0, vocab); a broken contract otherwise.
void check_targets(const Tensor& targets, std::int64_t vocab);
void cross_entropy(Stream& stream, const CrossEntropy& args);
void cross_entropy_stats(Stream& stream, const CrossEntropyShard& shard, const Tensor& stats);
void cross_entropy_from_stats(Stream& stream, const CrossEntropyShard& shard, const Tensor& all_stats,
                              const Tensor& losses, const Tensor& dlogits, float scale);

void add(Stream& stream, const Tensor& a, const Tensor& b, const Tensor& out);
void cast(Stream& stream, const Tensor& from, const Tensor& to);
void fill(Stream& stream, const Tensor& out, float value);
void touch(Stream& stream, const Tensor& out);
void scale(Stream& stream, const Tensor& x, float factor);
void fill_normal(Stream& stream, const Tensor& out, const RandomStream& random, std::int64_t first_index,
                 float mean, float deviation);
double sum(Stream& stream, const Tensor& x);

}  // namespace meshtrain::ops::cpu
