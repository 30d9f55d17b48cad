// Memory of one thread that grows.

#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

struct Free {
    void operator()(void* p) const { std::free(p); }
};

template <typename T>
class Buffer {
public:
    // Zeroed when it grows: the values after a row's last one must be finite.
    T* at_least(int64_t count) {
        if (count > size_) {
            const int64_t bytes = (count * sizeof(T) + 63) / 64 * 64;
            data_.reset(static_cast<T*>(std::aligned_alloc(64, bytes)));
            std::memset(static_cast<void*>(data_.get()), 0, bytes);
            size_ = count;
        }
        return data_.get();
    }

private:
    std::unique_ptr<T, Free> data_;
    int64_t size_ = 0;
};
