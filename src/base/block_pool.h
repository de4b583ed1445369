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

calla_status block_pool_init(block_pool *pool, int32_t n_blocks, calla_error *err);
void block_pool_deinit(block_pool *pool);
/* A free block with one reference, or -1. */
int32_t block_pool_take(block_pool *pool);
void block_pool_retain(block_pool *pool, int32_t block);
void block_pool_release(block_pool *pool, int32_t block);

#endif
