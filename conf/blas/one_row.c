/* Sends products of one row or one column, which cblas_sgemm repacks all weights for, to
 * cblas_sgemv; everything else goes on to the library behind this one. Preloaded into runners
 * where runner.parity is "fast": cblas_sgemv may round otherwise than cblas_sgemm does.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

enum { ROW_MAJOR = 101, COLUMN_MAJOR = 102, PLAIN = 111, TRANSPOSED = 112 };

typedef void Gemm(int, int, int, int, int, int, float, const float *, int, const float *, int,
                  float, float *, int);
typedef void Gemv(int, int, int, int, float, const float *, int, const float *, int, float, float *,
                  int);

static Gemm *gemm;
static Gemv *gemv;

__attribute__((constructor)) static void find(void) {
    gemm = (Gemm *)dlsym(RTLD_NEXT, "cblas_sgemm");
    gemv = (Gemv *)dlsym(RTLD_NEXT, "cblas_sgemv");
}

/* Sets y = alpha op(W) x + beta y, where W is stored in rows, `outer` of them when it is plain. */
static void one(int plain, int outer, int inner, float alpha, const float *w, int ldw,
                const float *x, int step_x, float beta, float *y, int step_y) {
    if (beta == 0.0f) /* whatever is there, even if it is no number */
        for (int i = 0; i < outer; i++) y[(long)i * step_y] = 0.0f;
    gemv(ROW_MAJOR, plain ? PLAIN : TRANSPOSED, plain ? outer : inner, plain ? inner : outer, alpha,
         w, ldw, x, step_x, beta, y, step_y);
}

void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                 int lda, const float *b, int ldb, float beta, float *c, int ldc) {
    if (!gemm || !gemv) find();
    if (order == COLUMN_MAJOR) { /* the transposed product, in rows */
        cblas_sgemm(ROW_MAJOR, tb, ta, n, m, k, alpha, b, ldb, a, lda, beta, c, ldc);
        return;
    }
    int pa = ta == PLAIN, pb = tb == PLAIN, can = gemv && order == ROW_MAJOR && k > 0;
    if (can && m == 1 && n > 0)
        one(!pb, n, k, alpha, b, ldb, a, pa ? 1 : lda, beta, c, 1);
    else if (can && n == 1 && m > 0)
        one(pa, m, k, alpha, a, lda, b, pb ? ldb : 1, beta, c, ldc);
    else
        gemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
