// One call of a CPU kernel for tensors of the device: each gets a twin, a CPU tensor over the bytes behind the wall. What
// the kernel gives back goes to the device: a twin as what it is a twin of, a view of a twin as a view, all else as a copy.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <vector>

namespace walled {

class Twins {
 public:
  explicit Twins(bool may_mix) : may_mix_(may_mix) {}

  at::Tensor near(const at::Tensor& far);
  c10::Storage near(const c10::Storage& far);
  c10::IValue near(const c10::IValue& given);

  void check_mixed() const;  // as CUDA does, unless the op may mix devices
  void settle();       // what the kernel resized or reshaped in its arguments, done to these
  at::Tensor far(const at::Tensor& near);
  c10::IValue far(const c10::IValue& result);

 private:
  c10::Storage far(const c10::Storage& near);
  at::Tensor near_sparse(const at::Tensor& far);
  at::Tensor far_sparse(const at::Tensor& near);


  struct Memory {
    c10::Storage far, near;
  };
  struct Pair {
    at::Tensor far, near;
  };
  std::vector<Memory> memories_;
  std::vector<Pair> pairs_;
  bool may_mix_;
  bool has_far_ = false, has_near_ = false;
};

}  // namespace walled
