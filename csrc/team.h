// A team of threads that works through kernels together.
//
// A kernel is a function of its arguments and a Team, called by every member with the same arguments: each does its
// share, and returns without waiting. Whoever calls kernels puts a barrier between them. What a share is must not
// change a bit: work is divided by outputs, never within a sum.
#pragma once

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace motet {

// What the members share. One for each team that runs at the same time.
struct TeamState {
    alignas(64) std::atomic<int64_t> num_waiting{0};
    alignas(64) std::atomic<uint32_t> phase{0};
    std::atomic<int32_t> num_asleep{0};
    alignas(64) std::atomic<int64_t> next{0};
    void* memory = nullptr;
    int64_t num_bytes = 0;

    TeamState() = default;
    TeamState(const TeamState&) = delete;
    TeamState& operator=(const TeamState&) = delete;
    ~TeamState() { std::free(memory); }
};

struct Range {
    int64_t begin;
    int64_t end;
};

class Team {
public:
    Team(TeamState& state, int64_t thread, int64_t size) : state_(&state), thread_(thread), size_(size) {}

    int64_t thread() const { return thread_; }
    int64_t size() const { return size_; }

    // This member's part of [0, count): parts of nearly equal length, of at least `least` (but for the last one), so
    // that little work is done by few.
    Range share(int64_t count, int64_t least = 1) const {
        if (least < 1) least = 1;
        int64_t length = (count + size_ - 1) / size_;
        if (length < least) length = least;
        const int64_t begin = thread_ * length, end = begin + length;
        return {begin < count ? begin : count, end < count ? end : count};
    }

    // The next of the numbers 0, 1, 2, ... that no member has taken since the last barrier, `count` at a time.
    int64_t take(int64_t count = 1) const { return state_->next.fetch_add(count, std::memory_order_relaxed); }

    // Calls visit(i) for i in [0, count). Members take runs of at least `least` as they get along: one each of little work
    // (shorter ones would tear apart what memory can stream), four each of much, so that a member which shares its core
    // with another process holds up the others less. Once between two barriers.
    template <class Visit>
    void for_each(int64_t count, int64_t least, const Visit& visit) const {
        const int64_t num_runs = count < kMuch * size_ ? size_ : 4 * size_;
        int64_t length = (count + num_runs - 1) / num_runs;
        if (length < least) length = least;
        if (length < 1) length = 1;
        for (int64_t first = take(length); first < count; first = take(length)) {
            const int64_t end = first + length < count ? first + length : count;
            for (int64_t i = first; i < end; ++i) visit(i);
        }
    }

    // Waits for all members: spins for some microseconds, gives way a few times, then sleeps. (A waiter that only gives way
    // still looks busy to the kernel, which then leaves a member that lags to share its core with another process.)
    void barrier() const {
        if (size_ == 1) {
            state_->next.store(0, std::memory_order_relaxed);
            return;
        }
        const uint32_t phase = state_->phase.load(std::memory_order_relaxed);
        if (state_->num_waiting.fetch_add(1, std::memory_order_acq_rel) == size_ - 1) {
            state_->num_waiting.store(0, std::memory_order_relaxed);
            state_->next.store(0, std::memory_order_relaxed);
            state_->phase.store(phase + 1, std::memory_order_seq_cst);
            if (state_->num_asleep.load(std::memory_order_seq_cst) > 0) wake_all();
            return;
        }
        for (int64_t looks = 0; state_->phase.load(std::memory_order_acquire) == phase; ++looks) {
            if (looks < kSpins) {
                pause();
            } else if (looks < kSpins + kYields) {
                give_way();
            } else {
                sleep_in(phase);
            }
        }
    }

    // Memory of the whole team, 64-byte aligned, valid until the next call. Every member calls it, with the same size;
    // it contains a barrier. What it held before is lost.
    char* memory(int64_t num_bytes) const {
        barrier();  // nobody still uses the last kernel's
        if (thread_ == 0 && num_bytes > state_->num_bytes) {
            std::free(state_->memory);
            state_->num_bytes = (num_bytes + 4095) / 4096 * 4096;
            state_->memory = std::aligned_alloc(64, size_t(state_->num_bytes));
            if (!state_->memory) throw std::bad_alloc();
        }
        barrier();
        return static_cast<char*>(state_->memory);
    }

private:
    static constexpr int64_t kSpins = 2000;  // some 20 to 60 microseconds
    static constexpr int64_t kYields = 20;
    static constexpr int64_t kMuch = 32;

    static void pause() {
#if defined(__x86_64__) || defined(__i386__)
        __builtin_ia32_pause();
#elif defined(__aarch64__)
        __asm__ __volatile__("yield");
#endif
    }

#if defined(__linux__)

    static void give_way() { sched_yield(); }

    // Until the phase is another one; may return early.
    void sleep_in(uint32_t phase) const {
        state_->num_asleep.fetch_add(1, std::memory_order_seq_cst);
        syscall(SYS_futex, phase_word(), FUTEX_WAIT_PRIVATE, phase, nullptr, nullptr, 0);
        state_->num_asleep.fetch_sub(1, std::memory_order_relaxed);
    }

    void wake_all() const { syscall(SYS_futex, phase_word(), FUTEX_WAKE_PRIVATE, 1 << 30, nullptr, nullptr, 0); }

    uint32_t* phase_word() const {
        static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "a futex is a word");
        return reinterpret_cast<uint32_t*>(&state_->phase);
    }

#else

    static void give_way() { pause(); }
    void sleep_in(uint32_t) const { pause(); }
    void wake_all() const {}

#endif

    TeamState* state_;
    int64_t thread_;
    int64_t size_;
};

}  // namespace motet
