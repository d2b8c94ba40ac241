// The device's memory. An address that the device hands out lies in a range that no process may read or write: whoever
// touches it from the host gets a segmentation fault. What it stands for lies in a second range, at a fixed distance,
// known to this extension only: `behind(address)`. Nothing is ever opened, so that there is no moment, and no thread, in
// which a forbidden access would go unseen.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

namespace walled {

inline constexpr c10::DeviceType WALLED = c10::DeviceType::PrivateUse1;

void* behind(const void* address);  // where the bytes of a device address really are
bool is_ours(const void* address);
c10::Allocator* allocator();
int64_t bytes_in_use();

}  // namespace walled
