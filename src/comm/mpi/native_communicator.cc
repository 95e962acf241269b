#include "comm/mpi/native_communicator.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"

namespace meshtrain::mpi {
namespace {

bool fits(std::int64_t elements) {
  return elements <= std::numeric_limits<int>::max();
}

MPI_Datatype type_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kF64:
      return MPI_DOUBLE;
    case DType::kI32:
      return MPI_INT32_T;
    case DType::kI64:
      return MPI_INT64_T;
    case DType::kU8:
      return MPI_UINT8_T;
    case DType::kBF16:
    case DType::kF16:
      return MPI_UINT16_T;  // to move them
  }
  return MPI_DATATYPE_NULL;
}

MPI_Op op_of(const CommCall& call) {
  if (call.dtype == DType::kBF16 || call.dtype == DType::kF16) {
    throw_user_error("{} over mpi-native: MPI knows no 16-bit floating-point numbers; use engine mpi, or fp32",
                     to_string(call));
  }
  switch (call.reduce) {
    case ReduceOp::kSum:
    case ReduceOp::kAvg:
      return MPI_SUM;
    case ReduceOp::kMin:
      return MPI_MIN;
    case ReduceOp::kMax:
      return MPI_MAX;
  }
  return MPI_OP_NULL;
}

template <class T>
void divide(const Tensor& values, int divisor) {
  T* const data = values.data<T>();
  for (std::int64_t i = 0; i < values.numel(); ++i) data[i] = static_cast<T>(data[i] / static_cast<T>(divisor));
}

// MPI knows no average.
void finish_average(const CommCall& call, const Tensor& out, int ranks) {
  if (call.reduce != ReduceOp::kAvg) return;
  switch (call.dtype) {
    case DType::kF32:
      return divide<float>(out, ranks);
    case DType::kF64:
      return divide<double>(out, ranks);
    case DType::kI32:
      return divide<std::int32_t>(out, ranks);
    case DType::kI64:
      return divide<std::int64_t>(out, ranks);
    case DType::kU8:
      if (ranks <= std::numeric_limits<std::uint8_t>::max()) return divide<std::uint8_t>(out, ranks);
      std::fill_n(out.data<std::uint8_t>(), out.numel(), std::uint8_t{0});
      return;
    case DType::kBF16:
    case DType::kF16:
      return;  // refused by op_of
  }
}

}  // namespace

NativeCommunicator::NativeCommunicator(Session& session, std::string name, std::vector<int> ranks, int rank,
                                       int tag)
    : OwnCommunicator(session, std::move(name), std::move(ranks), rank, tag) {
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group group = MPI_GROUP_NULL;
  check_mpi(MPI_Comm_group(session.data(), &world), "MPI_Comm_group");
  check_mpi(MPI_Group_incl(world, size(), this->ranks().data(), &group), "MPI_Group_incl");
  check_mpi(MPI_Comm_create_group(session.data(), group, tag, &comm_), "MPI_Comm_create_group");
  MPI_Group_free(&group);
  MPI_Group_free(&world);
}

void NativeCommunicator::finish(MPI_Request request, const CommCall& call) {
  Requests requests;
  requests.add(request);
  this->session().wait_for_data(requests, [&] {
    return fmt::format("{}: within the MPI library, which does not say what ranks are missing", describe(call));
  });
}

void NativeCommunicator::do_barrier(const CommCall& call) {
  session().check_alive();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ibarrier(comm_, &request), "MPI_Ibarrier");
  finish(request, call);
}

void NativeCommunicator::do_broadcast(const CommCall& call, const Tensor& data) {
  if (!fits(data.numel())) return OwnCommunicator::do_broadcast(call, data);
  session().check_alive();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Ibcast(data.raw(), static_cast<int>(data.numel()), type_of(call.dtype), call.root, comm_, &request),
      "MPI_Ibcast");
  finish(request, call);
}

void NativeCommunicator::do_all_reduce(const CommCall& call, const Tensor& in, const Tensor& out) {
  const MPI_Op op = op_of(call);
  if (!fits(in.numel())) return OwnCommunicator::do_all_reduce(call, in, out);
  session().check_alive();
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Iallreduce(in.raw() == out.raw() ? MPI_IN_PLACE : in.raw(), out.raw(),
                           static_cast<int>(in.numel()), type_of(call.dtype), op, comm_, &request),
            "MPI_Iallreduce");
  finish(request, call);
  finish_average(call, out, size());
}

void NativeCommunicator::do_reduce_scatter(const CommCall& call, const Tensor& in, const Tensor& out) {
  const MPI_Op op = op_of(call);
  const std::int64_t mine = out.numel() * rank() * size_of(call.dtype);
  const bool in_place = out.raw() == static_cast<std::byte*>(in.raw()) + mine;
  if (!fits(in.numel())) return OwnCommunicator::do_reduce_scatter(call, in, out);
  session().check_alive();
  MPI_Request request = MPI_REQUEST_NULL;
  // The library's form of "in place" leaves the result at the front, where it would overwrite other pieces.
  std::vector<std::byte> beside(in_place ? static_cast<std::size_t>(out.bytes()) : 0);
  check_mpi(MPI_Ireduce_scatter_block(in.raw(), in_place ? beside.data() : out.raw(),
                                      static_cast<int>(out.numel()), type_of(call.dtype), op, comm_, &request),
            "MPI_Ireduce_scatter_block");
  finish(request, call);
  std::copy(beside.begin(), beside.end(), static_cast<std::byte*>(out.raw()));
  finish_average(call, out, size());
}

void NativeCommunicator::do_all_gather(const CommCall& call, const Tensor& in, const Tensor& out) {
  if (!fits(out.numel())) return OwnCommunicator::do_all_gather(call, in, out);
  session().check_alive();
  const std::int64_t mine = in.bytes() * rank();
  const bool in_place = in.raw() == static_cast<std::byte*>(out.raw()) + mine;
  const int count = static_cast<int>(in.numel());
  const MPI_Datatype type = type_of(call.dtype);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(
      MPI_Iallgather(in_place ? MPI_IN_PLACE : in.raw(), count, type, out.raw(), count, type, comm_, &request),
      "MPI_Iallgather");
  finish(request, call);
}

void NativeCommunicator::do_all_to_all(const CommCall& call, const Tensor& in,
                                       std::span<const std::int64_t> send_counts, const Tensor& out,
                                       std::span<const std::int64_t> receive_counts) {
  // Falling back would have to be decided alike on ranks of unlike sizes.
  if (!fits(in.numel()) || !fits(out.numel())) {
    throw_user_error("all-to-all of {} elements over mpi-native: the library counts to {}; use engine mpi",
                     std::max(in.numel(), out.numel()), std::numeric_limits<int>::max());
  }
  session().check_alive();
  struct Layout {
    std::vector<int> counts, offsets;
  };
  const auto layout_of = [](std::span<const std::int64_t> counts) {
    Layout layout;
    int at = 0;
    for (const std::int64_t count : counts) {
      layout.counts.push_back(static_cast<int>(count));
      layout.offsets.push_back(at);
      at += static_cast<int>(count);
    }
    return layout;
  };
  const Layout to = layout_of(send_counts);
  const Layout from = layout_of(receive_counts);
  const MPI_Datatype type = type_of(call.dtype);
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPI_Ialltoallv(in.raw(), to.counts.data(), to.offsets.data(), type, out.raw(), from.counts.data(),
                           from.offsets.data(), type, comm_, &request),
            "MPI_Ialltoallv");
  finish(request, call);
}

}  // namespace meshtrain::mpi
