#pragma once

#include <ATen/core/Generator.h>

#include <optional>

namespace walled {

// The CPU's generator that draws for this one, or for the device's own where none is given.
at::Generator cpu_generator(const std::optional<at::Generator>& given);

}  // namespace walled
