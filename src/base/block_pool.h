/* Reference counts and a free list over numbered blocks (KV cache blocks; what a block holds is the
 * owner's business). All memory is taken at init. */
#ifndef CALLA_BASE_BLOCK_POOL_H
#define CALLA_BASE_BLOCK_POOL_H

#include "base/error.h"

typedef struct block_pool {
    int32_t n_blocks, n_free;
    int32_t *free_blocks; /* stack [n_free] */
    int32_t *references;  /* [n_blocks], 0 = free */
} block_pool;

/* CALLA_ERR_MEMORY if there are more than an int32 numbers. */
calla_status block_pool_init(block_pool *pool, int64_t n_blocks, calla_error *err);
void block_pool_deinit(block_pool *pool);
/* A free block with one reference, or -1. */
int32_t block_pool_take(block_pool *pool);
void block_pool_retain(block_pool *pool, int32_t block);
void block_pool_release(block_pool *pool, int32_t block);

/* ---- lists of blocks, such as a sequence's ---- */

/* Room behind the `have` blocks of a list for `more`. If the last one will be written to
 * (`continue_last`) and others hold it too, an own one takes its place: *shared is then the block
 * that it must become a copy of, still referenced, and else -1. CALLA_ERR_MEMORY changes nothing.
 */
calla_status block_list_grow(block_pool *pool, int32_t *blocks, int32_t have, int32_t more,
                             bool continue_last, int32_t *shared, calla_error *err);
/* Gives blocks [begin, end) of a list back. */
void block_list_release(block_pool *pool, const int32_t *blocks, int32_t begin, int32_t end);
/* to [n], empty before, holds the blocks of from [n] as well. */
void block_list_share(block_pool *pool, int32_t *to, const int32_t *from, int32_t n);

#endif
