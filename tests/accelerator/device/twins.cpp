#include "twins.h"

#include <ATen/SparseCsrTensorImpl.h>
#include <ATen/SparseCsrTensorUtils.h>
#include <ATen/SparseTensorImpl.h>
#include <ATen/core/List.h>
#include <ATen/ops/_sparse_compressed_tensor_unsafe.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <c10/core/CPUAllocator.h>

#include <cstring>

#include "memory.h"
#include "runtime.h"

namespace walled {
namespace {

bool is_far(const at::Tensor& t) { return t.defined() && t.device().type() == WALLED; }

at::SparseTensorImpl* coo(const at::Tensor& t) { return static_cast<at::SparseTensorImpl*>(t.unsafeGetTensorImpl()); }
at::SparseCsrTensorImpl* csr(const at::Tensor& t) {
  return static_cast<at::SparseCsrTensorImpl*>(t.unsafeGetTensorImpl());
}

void share_shape(const at::Tensor& from, const at::Tensor& to) {
  auto* const impl = to.unsafeGetTensorImpl();
  if (impl->sizes() != from.sizes() || impl->strides() != from.strides() ||
      impl->storage_offset() != from.storage_offset()) {
    impl->set_sizes_and_strides(from.sizes(), from.strides(), from.storage_offset());
  }
}

at::Tensor over(c10::Storage&& storage, c10::DispatchKey key, const at::Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  share_shape(like, made);
  if (like.unsafeGetTensorImpl()->is_wrapped_number()) made.unsafeGetTensorImpl()->set_wrapped_number(true);
  made._set_conj(like.is_conj());
  made._set_neg(like.is_neg());
  return made;
}

}  // namespace

// --------------------------------------------------------------- to the kernel

c10::Storage Twins::near(const c10::Storage& far) {
  for (const auto& memory : memories_) {
    if (memory.far.unsafeGetStorageImpl() == far.unsafeGetStorageImpl()) return memory.near;
  }
  // It may be resized: with memory of the CPU's, which `settle` brings to the device.
  c10::Storage near(
      c10::Storage::use_byte_size_t(),
      far.nbytes(),
      c10::DataPtr(behind(far.data()), c10::Device(c10::kCPU)),
      c10::GetCPUAllocator(),
      /*resizable=*/true);
  memories_.push_back({far, near});
  return near;
}

at::Tensor Twins::near(const at::Tensor& far) {
  if (!is_far(far)) {
    has_near_ |= far.defined() && far.device().is_cpu() && far.dim() > 0;
    return far;
  }
  has_far_ = true;
  for (const auto& pair : pairs_) {
    if (pair.far.unsafeGetTensorImpl() == far.unsafeGetTensorImpl()) return pair.near;
  }
  at::Tensor twin = far.layout() == c10::kStrided ? over(near(far.storage()), c10::DispatchKey::CPU, far) : near_sparse(far);
  pairs_.push_back({far, twin});
  return twin;
}

at::Tensor Twins::near_sparse(const at::Tensor& far) {
  const auto options = far.options().device(c10::kCPU);
  if (far.layout() == c10::kSparse) {
    const auto* const of = coo(far);
    return at::_sparse_coo_tensor_unsafe(near(of->indices()), near(of->values()), far.sizes(), options, of->coalesced());
  }
  const auto* const of = csr(far);
  return at::_sparse_compressed_tensor_unsafe(
      near(of->compressed_indices()), near(of->plain_indices()), near(of->values()), far.sizes(), options);
}

c10::IValue Twins::near(const c10::IValue& given) {
  if (given.isTensor()) return near(given.toTensor());
  if (given.isStorage()) return given.toStorage().device_type() == WALLED ? near(given.toStorage()) : given.toStorage();
  if (given.isDevice()) return c10::Device(c10::kCPU);
  if (given.isGenerator()) return cpu_generator(given.toGenerator());
  if (given.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const auto& t : given.toTensorVector()) made.push_back(near(t));
    return made;
  }
  if (given.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> made;
    for (const auto& t : given.toOptionalTensorVector()) {
      made.push_back(t.has_value() ? std::optional<at::Tensor>(near(*t)) : std::nullopt);
    }
    return made;
  }
  return given;
}

void Twins::check_mixed() const {
  TORCH_CHECK(
      may_mix_ || !has_far_ || !has_near_,
      "Expected all tensors to be on the same device, but found at least two devices, walled:0 and cpu!");
}

// ------------------------------------------------------------- from the kernel

c10::Storage Twins::far(const c10::Storage& near) {
  for (const auto& memory : memories_) {
    if (memory.near.unsafeGetStorageImpl() == near.unsafeGetStorageImpl()) return memory.far;
  }
  c10::Storage far(c10::Storage::use_byte_size_t(), near.nbytes(), allocator(), /*resizable=*/true);
  if (near.nbytes() != 0) std::memcpy(behind(far.data()), near.data(), near.nbytes());
  memories_.push_back({far, near});
  return far;
}

at::Tensor Twins::far(const at::Tensor& near) {
  if (!near.defined() || !near.device().is_cpu()) return near;
  for (const auto& pair : pairs_) {
    if (pair.near.unsafeGetTensorImpl() == near.unsafeGetTensorImpl()) return pair.far;
  }
  return near.layout() == c10::kStrided ? over(far(near.storage()), c10::DispatchKey::PrivateUse1, near) : far_sparse(near);
}

at::Tensor Twins::far_sparse(const at::Tensor& near) {
  if (near.layout() == c10::kSparse) {
    const auto* const of = coo(near);
    auto made = at::detail::make_tensor<at::SparseTensorImpl>(
        c10::DispatchKeySet(c10::DispatchKey::SparsePrivateUse1), near.dtype());
    coo(made)->resize_(of->sparse_dim(), of->dense_dim(), near.sizes());
    coo(made)->set_indices_and_values_unsafe(far(of->indices()), far(of->values()));
    coo(made)->set_coalesced(of->coalesced());
    return made;
  }
  TORCH_CHECK_NOT_IMPLEMENTED(
      at::sparse_csr::is_sparse_compressed(near), "the walled device has no tensors of layout ", near.layout());
  const auto* const of = csr(near);
  auto made = at::detail::make_tensor<at::SparseCsrTensorImpl>(
      c10::DispatchKeySet(c10::DispatchKey::SparseCsrPrivateUse1),
      c10::Device(WALLED, 0),
      near.layout(),
      near.dtype());
  csr(made)->set_member_tensors(
      far(of->compressed_indices()), far(of->plain_indices()), far(of->values()), near.sizes());
  return made;
}

c10::IValue Twins::far(const c10::IValue& result) {
  if (result.isTensor()) return far(result.toTensor());
  if (result.isTensorList()) {
    c10::List<at::Tensor> made;
    for (const auto& t : result.toTensorVector()) made.push_back(far(t));
    return made;
  }
  return result;
}

void Twins::settle() {
  const size_t given = memories_.size();
  for (size_t i = 0; i < given; i++) {
    auto* const near = memories_[i].near.unsafeGetStorageImpl();
    auto* const far = memories_[i].far.unsafeGetStorageImpl();
    if (near->data() == behind(far->data()) && near->nbytes() == far->nbytes()) continue;
    auto moved = allocator()->allocate(near->nbytes());
    if (near->nbytes() != 0) std::memcpy(behind(moved.get()), near->data(), near->nbytes());
    far->set_data_ptr_noswap(std::move(moved));
    far->set_nbytes(near->nbytes());
  }
  const auto pairs = pairs_;
  for (const auto& [far_tensor, near_tensor] : pairs) {
    if (far_tensor.layout() == c10::kSparse) {
      const auto* const of = coo(near_tensor);
      coo(far_tensor)->raw_resize_(of->sparse_dim(), of->dense_dim(), near_tensor.sizes());
      coo(far_tensor)->set_indices_and_values_unsafe(far(of->indices()), far(of->values()));
      coo(far_tensor)->set_coalesced(of->coalesced());
    } else if (far_tensor.layout() != c10::kStrided) {
      const auto* const of = csr(near_tensor);
      csr(far_tensor)->set_member_tensors(
          far(of->compressed_indices()), far(of->plain_indices()), far(of->values()), near_tensor.sizes());
    } else {
      const auto storage = far(near_tensor.storage());
      if (storage.unsafeGetStorageImpl() != far_tensor.storage().unsafeGetStorageImpl()) {
        far_tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(storage);
      }
      share_shape(near_tensor, far_tensor);
    }
  }
}

}  // namespace walled
