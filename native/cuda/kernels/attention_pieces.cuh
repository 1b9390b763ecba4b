// Keys and values of a run of chunks on their way through shared memory: pieces by cp.async, three
// ahead; those of earlier steps are asked for before the wait for this step's.
//
// Orders that the ring rests on: a thread waits for its own copies of a piece (wait_group), then
// all meet at a barrier, so everybody's are there; the same barrier says that everybody is done
// with the piece before, into whose place the next copies go. Nobody reads a place that copies may
// still write.
#pragma once

#include "kernels/attention_plan.cuh"
#include "kernels/shared_access.cuh"

namespace vcuda::gpu {

template <int W>
__device__ __forceinline__ void store_vector(float* to, const float* from) {
  if constexpr (W == 4)
    *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1], from[2], from[3]);
  else *reinterpret_cast<float2*>(to) = make_float2(from[0], from[1]);
}

// Granules (4 keys) of a row of keys change places by the row's lane, so that a warp's reads of
// four rows meet no bank twice.
__device__ __forceinline__ int granule_swizzle(int l) { return (l & 1) * 4 + (l >> 1) * 2; }

class AttentionPieces {
 public:
  // memory: kAttentionPieces pieces.
  __device__ __forceinline__ AttentionPieces(const AttentionArgs& a, int position, float* memory,
                                             int kv, int begin, int end)
      : a_(a),
        memory_(memory),
        per_chunk_(a.room.key_pieces + arith::kChunk / a.room.keys),
        left_((end - begin) * per_chunk_),
        old_((min(position / arith::kChunk, end) - begin) * per_chunk_),
        keys_(position + a.m - begin * arith::kChunk) {
    const size_t from = kv * a.head_floats + static_cast<size_t>(begin) * arith::kChunk * a.d;
    key_ = a.keys + from + threadIdx.x * 4, value_ = a.values + from + threadIdx.x * 4;
  }

  // Asks for pieces that earlier steps wrote.
  __device__ __forceinline__ void early() {
#pragma unroll 1
    while (asked_ < min(old_, kAttentionPieces - 1)) ask();
  }
  // Asks for as many as there is room for.
  __device__ __forceinline__ void fill() {
#pragma unroll 1
    while (asked_ < kAttentionPieces - 1) ask();
  }
  // The next piece, complete; its place.
  __device__ __forceinline__ const float* land() {
    const float* at = memory_ + slot_ * a_.room.piece;
    copy_wait<kAttentionPieces - 2>();
    __syncthreads();
    ask();
    slot_ = (slot_ + 1) % kAttentionPieces;
    return at;
  }

 private:
  const AttentionArgs& a_;
  float* memory_;
  const int per_chunk_;
  int left_, old_, keys_;  // pieces to ask for, of them old ones; keys from the next chunk on
  int asked_ = 0, piece_ = 0, ask_slot_ = 0, slot_ = 0;
  const float *key_, *value_;  // this thread's next granule

  // Asks for the next piece, if there is one; a group of copies in any case.
  __device__ __forceinline__ void ask() {
    if (left_ > 0) {
      const int t = threadIdx.x, size = a_.room.piece;
      const bool is_key = piece_ < a_.room.key_pieces;
      // Of the last chunk only what the last row sees, in fours of keys.
      const int floats =
          is_key ? (t % 16 * 4 < keys_ ? min(size, a_.d * arith::kChunk - piece_ * size) : 0)
                 : min(a_.room.keys, keys_ - (piece_ - a_.room.key_pieces) * a_.room.keys) * a_.d;
      const int place = is_key ? t ^ granule_swizzle(t / 16 % 4) : t;
      const float* from = is_key ? key_ : value_;
      float* to = memory_ + ask_slot_ * size + place * 4;
#pragma unroll
      for (int i = 0; i < kAttentionPiece / 4 / kAttentionThreads; ++i)
        if ((t + i * kAttentionThreads) * 4 < floats)
          copy_async(to + i * 4 * kAttentionThreads, from + i * 4 * kAttentionThreads);
      if (is_key) key_ = from + floats;
      else value_ = from + floats;
      if (++piece_ == per_chunk_) piece_ = 0, keys_ -= arith::kChunk;
      --left_;
    }
    ++asked_;
    copy_commit();
    ask_slot_ = (ask_slot_ + 1) % kAttentionPieces;
  }
};

}  // namespace vcuda::gpu
