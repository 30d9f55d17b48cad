// A barrier for the threads of a step.

#pragma once

#include <atomic>
#include <cstdint>

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

inline void pause_core() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}

// A barrier that spins for some microseconds and then sleeps: on a busy machine a late thread needs the core.
class Barrier {
public:
    explicit Barrier(int threads) : threads_(threads) {}

    void wait() {
        if (threads_ == 1) return;
        const uint32_t round = round_.load(std::memory_order_acquire);
        if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
            arrived_.store(0, std::memory_order_relaxed);
            round_.fetch_add(1, std::memory_order_release);
            if (sleepers_.load(std::memory_order_seq_cst)) wake();
            return;
        }
        for (int i = 0; i < kSpins; ++i) {
            if (round_.load(std::memory_order_acquire) != round) return;
            pause_core();
        }
        sleepers_.fetch_add(1, std::memory_order_seq_cst);
        while (round_.load(std::memory_order_seq_cst) == round) sleep(round);
        sleepers_.fetch_sub(1, std::memory_order_relaxed);
    }

private:
    static constexpr int kSpins = 1000;

#if defined(__linux__)
    void sleep(uint32_t round) {
        syscall(SYS_futex, &round_, FUTEX_WAIT_PRIVATE, round, nullptr, nullptr, 0);
    }
    void wake() { syscall(SYS_futex, &round_, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0); }
#else
    void sleep(uint32_t) { pause_core(); }
    void wake() {}
#endif

    const int threads_;
    alignas(64) std::atomic<int> arrived_{0};
    alignas(64) std::atomic<uint32_t> round_{0};
    alignas(64) std::atomic<int> sleepers_{0};
};
