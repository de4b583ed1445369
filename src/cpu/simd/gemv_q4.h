/* gemv_q4 from gemv_rows, which the including file has defined: one copy for each number of inputs,
 * a constant in it, so that the sums stay in registers. */
void KERNEL(gemv_q4)(const matrix *w, int32_t begin, int32_t end, const void *const *x, int32_t n,
                     float *const *y)
{
    switch (n) {
    case 1:
        gemv_rows(w, begin, end, x, 1, y);
        break;
    case 2:
        gemv_rows(w, begin, end, x, 2, y);
        break;
    case 3:
        gemv_rows(w, begin, end, x, 3, y);
        break;
    case 4:
        gemv_rows(w, begin, end, x, 4, y);
        break;
    case 5:
        gemv_rows(w, begin, end, x, 5, y);
        break;
    case 6:
        gemv_rows(w, begin, end, x, 6, y);
        break;
    case 7:
        gemv_rows(w, begin, end, x, 7, y);
        break;
    case 8:
        gemv_rows(w, begin, end, x, 8, y);
        break;
    default:
        break;
    }
}
