// MLX's own functions for one number, compiled for processors with fused multiply-add. Preloaded into
// runners: the kernels that MLX compiles as it runs (a SwiGLU, a GELU) call these in place of their
// own, which take some twenty nanoseconds, for MLX is built for every x86-64. The bits are the same:
// each step is rounded as before, and a fused multiply-add has one meaning.
#include "mlx/backend/cpu/simd/simd.h"

namespace mlx::core::simd {
template Simd<float, 1> exp(Simd<float, 1>);
template Simd<float, 1> erf(Simd<float, 1>);
} // namespace mlx::core::simd
