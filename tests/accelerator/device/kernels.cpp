// Every kernel of the device: the CPU's, run on twins.
#include <ATen/EmptyTensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/native/DispatchStub.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/native/transformers/sdp_utils_cpp.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <torch/library.h>

#include <set>

#include "memory.h"
#include "runtime.h"
#include "twins.h"

namespace walled {
namespace {

using at::IntArrayRef;
using at::Tensor;
using std::optional;

// CUDA too takes these with indices or sources that lie on the CPU.
const std::set<std::string> MIXED = {
    "aten::index.Tensor", "aten::index.Tensor_out", "aten::index_put_", "aten::index_put", "aten::_index_put_impl_",
    "aten::_copy_from", "aten::copy_", "aten::copy_sparse_to_sparse_",
};

bool draws(const c10::FunctionSchema& schema) {
  for (const auto& argument : schema.arguments()) {
    if (argument.name() == "generator") return true;
  }
  return false;
}

template <c10::DispatchKey K>
void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const at::AutoDispatchBelowADInplaceOrView below;
  const auto& schema = op.schema();
  const bool dice = draws(schema);
  Twins twins(MIXED.count(schema.operator_name().name + (schema.overload_name().empty() ? "" : "." + schema.overload_name())) != 0);
  const size_t count = schema.arguments().size(), first = stack->size() - count;
  for (size_t i = 0; i < count; i++) {
    auto& value = (*stack)[first + i];
    value = dice && schema.arguments()[i].name() == "generator" && value.isNone()
        ? c10::IValue(cpu_generator(std::nullopt))
        : twins.near(value);
  }
  twins.check_mixed();
  op.redispatchBoxed(c10::DispatchKeySet(K), stack);
  twins.settle();
  const size_t results = schema.returns().size();
  for (size_t i = stack->size() - results; i < stack->size(); i++) (*stack)[i] = twins.far((*stack)[i]);
}

Tensor empty(
    IntArrayRef size,
    optional<at::ScalarType> dtype,
    optional<at::Layout>,
    optional<at::Device>,
    optional<bool>,
    optional<at::MemoryFormat> format) {
  const c10::DispatchKeySet key(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(size, allocator(), key, c10::dtype_or_default(dtype), format);
}

Tensor empty_strided(
    IntArrayRef size,
    IntArrayRef stride,
    optional<at::ScalarType> dtype,
    optional<at::Layout>,
    optional<at::Device>,
    optional<bool>) {
  const c10::DispatchKeySet key(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, allocator(), key, c10::dtype_or_default(dtype));
}

Tensor copy_from(const Tensor& from, const Tensor& to, bool) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Twins twins(true);
  twins.near(to).copy_(twins.near(from));
  return to;
}

Tensor copy_from_and_resize(const Tensor& from, const Tensor& to) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Twins twins(true);
  twins.near(to).resize_(from.sizes()).copy_(twins.near(from));
  twins.settle();
  return to;
}

// PyTorch's has no memory at all, which no twin can have.
Tensor zeros(
    IntArrayRef size,
    optional<at::ScalarType> dtype,
    optional<at::Layout> layout,
    optional<at::Device> device,
    optional<bool> pinned) {
  return empty(size, dtype, layout, device, pinned, std::nullopt).zero_();
}

void record_stream(Tensor&, c10::Stream) {}

Tensor convolution(
    const Tensor& x,
    const Tensor& weight,
    const optional<Tensor>& bias,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Twins twins(false);
  const auto added = bias.has_value() ? optional<Tensor>(twins.near(*bias)) : std::nullopt;
  const auto a = twins.near(x), b = twins.near(weight);
  twins.check_mixed();
  return twins.far(at::convolution(a, b, added, stride, padding, dilation, transposed, output_padding, groups));
}

std::tuple<Tensor, Tensor, Tensor> convolution_backward(
    const Tensor& grad,
    const Tensor& x,
    const Tensor& weight,
    IntArrayRef stride,
    IntArrayRef padding,
    IntArrayRef dilation,
    bool transposed,
    IntArrayRef output_padding,
    int64_t groups,
    std::array<bool, 3> wanted) {
  const at::AutoDispatchBelowADInplaceOrView below;
  Twins twins(false);
  const std::vector<int64_t> bias = {grad.size(1)};
  const auto [dx, dw, db] = at::convolution_backward(
      twins.near(grad), twins.near(x), twins.near(weight), bias, stride, padding, dilation, transposed, output_padding, groups, wanted);
  return {twins.far(dx), twins.far(dw), twins.far(db)};
}

int64_t attention_by_plain_ops(
    const Tensor&, const Tensor&, const Tensor&, const optional<Tensor>&, double, bool, optional<double>, bool) {
  return static_cast<int64_t>(sdp::SDPBackend::math);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&run<c10::DispatchKey::CPU>>());
}

// A fallback comes after PyTorch's defaults, which for sparse tensors mostly say no: each kernel is named.
template <c10::DispatchKey K>
void sparse_kernels(torch::Library& m) {
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findOp(name);
    if (!op.has_value() || !op->hasSchema() || name.getNamespace() != "aten" || !op->hasKernelForDispatchKey(K)) continue;
    const auto called = name.name.substr(6) + (name.overload_name.empty() ? "" : "." + name.overload_name);
    m.impl(called.c_str(), torch::CppFunction::makeFromBoxedFunction<&run<K>>());
  }
}

TORCH_LIBRARY_IMPL(aten, SparsePrivateUse1, m) { sparse_kernels<c10::DispatchKey::SparseCPU>(m); }
TORCH_LIBRARY_IMPL(aten, SparseCsrPrivateUse1, m) { sparse_kernels<c10::DispatchKey::SparseCsrCPU>(m); }

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_efficientzerotensor", zeros);
  m.impl("record_stream", record_stream);
  m.impl("convolution_overrideable", convolution);
  m.impl("convolution_backward_overrideable", convolution_backward);
}

// PyTorch resolves these bits before a kernel by a copy, which would come back here.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, Negative, m) { m.impl("_copy_from", torch::CppFunction::makeFallthrough()); }

TORCH_LIBRARY(walled, m) {
  m.def("bytes_in_use() -> int", bytes_in_use);
  m.def("seed(int seed) -> ()", [](int64_t seed) { cpu_generator(std::nullopt).set_current_seed(seed); });
  m.def("rng_state() -> Tensor", [] { return cpu_generator(std::nullopt).get_state(); });
  m.def("set_rng_state(Tensor state) -> ()", [](const Tensor& state) { cpu_generator(std::nullopt).set_state(state); });
}

}  // namespace
}  // namespace walled

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &walled::attention_by_plain_ops)
}
