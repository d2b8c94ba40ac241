// What PyTorch asks of a backend beside kernels: its devices and streams, its random numbers, resizing of storages.
#include "runtime.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <cstring>

#include "memory.h"

namespace walled {

using c10::Device;
using c10::DeviceIndex;
using c10::Stream;

namespace {

// All work is done when a call returns, so streams and events have nothing to wait for. That there is a device at all
// makes autograd run its backward in a thread of its own, as it does for CUDA.
struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return WALLED; }
  Device exchangeDevice(Device) const override { return {WALLED, 0}; }
  Device getDevice() const override { return {WALLED, 0}; }
  void setDevice(Device) const override {}
  void uncheckedSetDevice(Device) const noexcept override {}
  Stream getStream(Device) const override { return Stream(Stream::DEFAULT, Device(WALLED, 0)); }
  Stream getDefaultStream(Device d) const override { return getStream(d); }
  Stream getStreamFromGlobalPool(Device d, bool) const override { return getStream(d); }
  Stream getNewStream(Device d, int) const override { return getStream(d); }
  Stream exchangeStream(Stream s) const override { return getStream(s.device()); }
  DeviceIndex deviceCount() const noexcept override { return 1; }
  void record(void**, const Stream&, const DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const Stream&) const override { return true; }
  void synchronizeStream(const Stream&) const override {}
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const DeviceIndex) const override {}
};

// A generator of the device is one of the CPU's in other clothes: the kernels are the CPU's.
struct Dice final : c10::GeneratorImpl {
  explicit Dice(at::Generator cpu)
      : GeneratorImpl({WALLED, 0}, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)), cpu(std::move(cpu)) {}
  void set_current_seed(uint64_t seed) override { cpu.set_current_seed(seed); }
  void set_offset(uint64_t offset) override { cpu.set_offset(offset); }
  uint64_t get_offset() const override { return cpu.get_offset(); }
  uint64_t current_seed() const override { return cpu.current_seed(); }
  uint64_t seed() override { return cpu.seed(); }
  void set_state(const c10::TensorImpl& state) override { cpu.unsafeGetGeneratorImpl()->set_state(state); }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override { return cpu.unsafeGetGeneratorImpl()->get_state(); }
  GeneratorImpl* clone_impl() const override { return new Dice(cpu.clone()); }
  at::Generator cpu;
};

const at::Generator& default_dice() {
  static const auto* const made = new at::Generator(at::make_generator<Dice>(at::detail::createCPUGenerator()));
  return *made;
}

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(DeviceIndex) const override { return true; }
  DeviceIndex deviceCount() const override { return 1; }
  DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(DeviceIndex) const override {}
  DeviceIndex exchangeDevice(DeviceIndex) const override { return 0; }
  DeviceIndex maybeExchangeDevice(DeviceIndex) const override { return 0; }
  Device getDeviceFromPtr(void*) const override { return {WALLED, 0}; }
  const at::Generator& getDefaultGenerator(DeviceIndex) const override { return default_dice(); }
  at::Generator getNewGenerator(DeviceIndex) const override {
    return at::make_generator<Dice>(at::detail::createCPUGenerator());
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t n) const override {
    auto* const impl = storage.unsafeGetStorageImpl();
    auto moved = allocator()->allocate(n);
    const size_t kept = std::min(n, impl->nbytes());
    if (kept != 0) std::memcpy(behind(moved.get()), behind(impl->data()), kept);
    impl->set_data_ptr_noswap(std::move(moved));
    impl->set_nbytes(n);
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard);

const bool registered = [] {
  c10::SetAllocator(WALLED, allocator());
  at::RegisterPrivateUse1HooksInterface(new Hooks);
  return true;
}();

}  // namespace

at::Generator cpu_generator(const std::optional<at::Generator>& given) {
  const at::Generator& dice = given.has_value() && given->defined() ? *given : default_dice();
  TORCH_CHECK(dice.device().type() == WALLED, "Expected a generator of the walled device but found one of ", dice.device());
  return static_cast<Dice*>(dice.unsafeGetGeneratorImpl())->cpu;
}

}  // namespace walled
