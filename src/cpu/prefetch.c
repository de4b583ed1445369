/* Experts whose weights may be on disk. Faults bring them a few pages at a time, one after the
 * other in each thread, and a disk so asked gives a tenth of its rate. As soon as the router knows
 * the experts of a layer, all of them are asked for at once. */
#include "base/file_load.h"
#include "cpu/cpu.h"

static void ask_for_matrix(const matrix *m)
{
    size_t scales = (size_t)m->rows * (size_t)(m->cols / QUANT_GROUP) * sizeof *m->scales;
    ask_for_pages(m->codes, (size_t)m->rows * matrix_row_bytes(m));
    if (m->format == MATRIX_BF16) return;
    ask_for_pages(m->scales, scales);
    ask_for_pages(m->biases, scales);
}

void prefetch_expert(const backend *b, const moe_weights *w, int32_t expert)
{
    if (b->weights->resident) return;
    const expert_matrices *all[] = {&w->gate, &w->up, &w->down};
    for (int i = 0; i < 3; i++) {
        matrix m = expert_matrix(all[i], expert);
        ask_for_matrix(&m);
    }
}
