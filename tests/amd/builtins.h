// What hiprtc declares before it reads a kernel, as far as our kernels use it, on clang's own builtins: enough to compile them for
// a GPU on a machine with neither ROCm nor a GPU.
#pragma once

typedef __SIZE_TYPE__ size_t;
typedef unsigned int uint;
typedef unsigned char uint8;
typedef unsigned short uint16;
typedef unsigned int uint32;
typedef unsigned long long uint64;
typedef signed char int8;
typedef short int16;
typedef int int32;
typedef long long int64;

#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads) __attribute__((amdgpu_flat_work_group_size(1, threads)))
#define MT_DEVICE static inline __attribute__((device, always_inline))

// threadIdx, blockIdx, blockDim and gridDim read hardware registers or the dispatch packet where they are used.
#define MT_INDEX(NAME, X, Y, Z)                                                 \
    struct NAME {                                                               \
        __attribute__((device, always_inline)) uint read_x() const { return X; } \
        __attribute__((device, always_inline)) uint read_y() const { return Y; } \
        __attribute__((device, always_inline)) uint read_z() const { return Z; } \
        __declspec(property(get = read_x)) uint x;                              \
        __declspec(property(get = read_y)) uint y;                              \
        __declspec(property(get = read_z)) uint z;                              \
    }
#define MT_EACH(BUILTIN) BUILTIN##_x(), BUILTIN##_y(), BUILTIN##_z()
MT_INDEX(MtThread, __builtin_amdgcn_workitem_id_x(), __builtin_amdgcn_workitem_id_y(), __builtin_amdgcn_workitem_id_z());
MT_INDEX(MtBlock, __builtin_amdgcn_workgroup_id_x(), __builtin_amdgcn_workgroup_id_y(), __builtin_amdgcn_workgroup_id_z());
MT_INDEX(MtBlockSize, __builtin_amdgcn_workgroup_size_x(), __builtin_amdgcn_workgroup_size_y(), __builtin_amdgcn_workgroup_size_z());
MT_INDEX(MtGrid, __builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x(),
         __builtin_amdgcn_grid_size_y() / __builtin_amdgcn_workgroup_size_y(),
         __builtin_amdgcn_grid_size_z() / __builtin_amdgcn_workgroup_size_z());
#define threadIdx (MtThread{})
#define blockIdx (MtBlock{})
#define blockDim (MtBlockSize{})
#define gridDim (MtGrid{})
#define warpSize ((int)__builtin_amdgcn_wavefrontsize())

MT_DEVICE void __syncthreads() {
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    __builtin_amdgcn_s_barrier();
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
}

MT_DEVICE int mt_lane() {
    int low = __builtin_amdgcn_mbcnt_lo(~0u, 0);
    return __builtin_amdgcn_wavefrontsize() == 64 ? __builtin_amdgcn_mbcnt_hi(~0u, low) : low;
}

template <class T>
MT_DEVICE T __shfl(T value, int lane) {
    static_assert(sizeof(T) == 4, "one register at a time");
    return __builtin_bit_cast(T, __builtin_amdgcn_ds_bpermute(4 * lane, __builtin_bit_cast(int, value)));
}
template <class T>
MT_DEVICE T __shfl_xor(T value, int mask) { return __shfl(value, mt_lane() ^ mask); }
template <class T>
MT_DEVICE T __shfl_up(T value, int by) { return __shfl(value, mt_lane() < by ? mt_lane() : mt_lane() - by); }
template <class T>
MT_DEVICE T __shfl_down(T value, int by) { return __shfl(value, mt_lane() + by < warpSize ? mt_lane() + by : mt_lane()); }

template <class T>
MT_DEVICE T min(T a, T b) { return b < a ? b : a; }
template <class T>
MT_DEVICE T max(T a, T b) { return a < b ? b : a; }
MT_DEVICE float fma(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
MT_DEVICE float sqrt(float x) { return __builtin_sqrtf(x); }
MT_DEVICE float rsqrt(float x) { return __builtin_amdgcn_rsqf(x); }
MT_DEVICE float exp(float x) { return __builtin_expf(x); }
MT_DEVICE float log(float x) { return __builtin_logf(x); }
MT_DEVICE float fabs(float x) { return __builtin_fabsf(x); }
MT_DEVICE float rint(float x) { return __builtin_rintf(x); }
