#include "memory.h"

#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace walled {
namespace {

constexpr size_t ROOM = size_t{1} << 36;  // of addresses, not of memory: pages are made when first touched
constexpr size_t BLOCK = 512;             // as CUDA rounds
constexpr size_t PAGE = size_t{1} << 16;  // no system's is larger
constexpr size_t LARGE = size_t{1} << 20;

char* reserve(int rights) {
  void* at = mmap(nullptr, ROOM, rights, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(at != MAP_FAILED, "the walled device could not reserve addresses");
  return static_cast<char*>(at);
}

struct Memory {
  char* wall = reserve(PROT_NONE);
  char* behind = reserve(PROT_READ | PROT_WRITE);
  size_t next = BLOCK;  // the first block is nobody's, so that no offset is zero
  size_t used = 0;
  std::map<size_t, std::vector<char*>> free;  // by rounded size, used again last in, first out, as CUDA's allocator does
  std::map<char*, size_t> sizes;
  std::mutex lock;

  char* take(size_t n) {
    const size_t size = (n + BLOCK - 1) / BLOCK * BLOCK;
    const std::lock_guard<std::mutex> held(lock);
    char* at = nullptr;
    auto& list = free[size];
    if (!list.empty()) {
      at = list.back();
      list.pop_back();
    } else {
      TORCH_CHECK(next + size <= ROOM, "the walled device is out of memory");
      at = wall + next;
      next += size;
    }
    sizes[at] = size;
    used += size;
    return at;
  }

  void give(char* at) {
    const std::lock_guard<std::mutex> held(lock);
    const auto found = sizes.find(at);
    const size_t size = found->second;
    sizes.erase(found);
    used -= size;
    char* bytes = behind + (at - wall);
    if (size >= LARGE) {
      // Whole pages of this block only: its neighbours begin and end anywhere.
      const auto start = reinterpret_cast<uintptr_t>(bytes) / PAGE * PAGE + PAGE;
      const auto end = reinterpret_cast<uintptr_t>(bytes + size) / PAGE * PAGE;
      madvise(reinterpret_cast<void*>(start), end - start, MADV_DONTNEED);
    } else {
      std::memset(bytes, 0xCD, size);  // what reads freed memory shall not find what it looks for
    }
    free[size].push_back(at);
  }
};

Memory& memory() {
  static auto* const made = new Memory;  // tensors may outlive every static object
  return *made;
}

void give_back(void* at) {
  if (at != nullptr) memory().give(static_cast<char*>(at));
}

struct Allocator final : c10::Allocator {
  c10::DataPtr allocate(size_t n) override {
    void* at = n == 0 ? nullptr : memory().take(n);
    return {at, at, &give_back, c10::Device(WALLED, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, size_t n) const override {
    if (n != 0) std::memcpy(behind(to), behind(from), n);
  }
};

}  // namespace

bool is_ours(const void* address) {
  const auto at = static_cast<const char*>(address);
  return at >= memory().wall && at < memory().wall + ROOM;
}

void* behind(const void* address) {
  if (address == nullptr) return nullptr;
  TORCH_CHECK(is_ours(address), "an address that is not the walled device's");
  return memory().behind + (static_cast<const char*>(address) - memory().wall);
}

c10::Allocator* allocator() {
  static Allocator made;
  return &made;
}

int64_t bytes_in_use() { return static_cast<int64_t>(memory().used); }

}  // namespace walled
