"""Triton code that lists the tiles of a mask; `block_masks.py` launches it, and works without Triton.

Each query sees the keys from `first` up to `stop`. A row of tiles then visits one range of tiles, of which the inner
ones are full and those at its ends partial. A program lists the tiles of one row of tiles, or, for the backward pass,
of one column; it needs the ranges of all rows for that, and reads them a few rows of tiles at a time.
"""

import triton.language as tl

from clearhead.compiling import jit

COUNTS = ["n_query", "n_key", "n_rows", "n_columns", "first_batch", "first_query", "stop_batch", "stop_query"]


@jit
def load_ranges(first, stop, query, n_query, n_key, first_query, stop_query):
    """Return the ranges of these queries, cut to the keys there are; 0 and 0 where a query sees nothing."""
    here = query < n_query
    begin = tl.maximum(tl.load(first + query * first_query, here, other=0), 0).to(tl.int32)
    end = tl.minimum(tl.load(stop + query * stop_query, here, other=0), n_key).to(tl.int32)
    sees = here & (begin < end)
    return tl.where(sees, begin, 0), tl.where(sees, end, 0), sees


@jit
def tile_range(begin, end, sees, n_key, TILE: tl.constexpr):
    """Return the tiles that a row of tiles visits, and those that all of its queries see whole; queries come last."""
    axis: tl.constexpr = len(begin.shape) - 1  # pyright: ignore[reportAssignmentType]
    visited = tl.min(tl.where(sees, begin, n_key), axis) // TILE
    visited_end = (tl.max(end, axis) + TILE - 1) // TILE
    full = (tl.max(tl.where(sees, begin, n_key), axis) + TILE - 1) // TILE
    full_end = tl.min(end, axis) // TILE
    # Empty ranges must have length 0, not less: where no query sees anything, the least begin is n_key.
    visited_end = tl.maximum(visited, visited_end)
    full_end = tl.maximum(full, full_end)
    return visited, visited_end, full, full_end


@jit(do_not_specialize=COUNTS)
def list_tiles(
    first,
    stop,
    first_made,
    stop_made,
    row_counts,
    row_tiles,
    full_row_counts,
    full_row_tiles,
    column_counts,
    column_tiles,
    full_column_counts,
    full_column_tiles,
    n_query,
    n_key,
    n_rows,
    n_columns,
    first_batch,
    first_query,
    stop_batch,
    stop_query,
    TILE: tl.constexpr,
    ROWS: tl.constexpr,
    LISTED: tl.constexpr,
):
    batch, line = tl.program_id(1), tl.program_id(0)
    first += batch * first_batch
    stop += batch * stop_batch
    if line < n_rows:
        query = line * TILE + tl.arange(0, TILE)
        begin, end, sees = load_ranges(first, stop, query, n_query, n_key, first_query, stop_query)
        tl.store(first_made + batch * n_query + query, begin, query < n_query)
        tl.store(stop_made + batch * n_query + query, end, query < n_query)
        visited, visited_end, full, full_end = tile_range(begin, end, sees, n_key, TILE)
        n_full = full_end - full
        tl.store(row_counts + batch * n_rows + line, visited_end - visited - n_full)
        tl.store(full_row_counts + batch * n_rows + line, n_full)
        offset = (batch * n_rows + line) * n_columns
        for start in range(0, n_columns, LISTED):
            place = start + tl.arange(0, LISTED)
            # The partial tiles are those before the full ones and those after: the list jumps over the full ones.
            partial = visited + place
            partial = tl.where((n_full > 0) & (partial >= full), partial + n_full, partial)
            tl.store(row_tiles + offset + place, tl.minimum(partial, n_columns - 1), place < n_columns)
            tl.store(full_row_tiles + offset + place, tl.minimum(full + place, n_columns - 1), place < n_columns)
    else:
        column = line - n_rows
        offset = (batch * n_columns + column) * n_rows
        n_partial, n_full = 0, 0
        for start in range(0, n_rows, ROWS):
            row = start + tl.arange(0, ROWS)
            query = row[:, None] * TILE + tl.arange(0, TILE)[None, :]
            begin, end, sees = load_ranges(first, stop, query, n_query, n_key, first_query, stop_query)
            visited, visited_end, full, full_end = tile_range(begin, end, sees, n_key, TILE)
            is_full = (column >= full) & (column < full_end)
            is_partial = (column >= visited) & (column < visited_end) & (is_full == 0)
            partial, whole = is_partial.to(tl.int32), is_full.to(tl.int32)
            # A prefix sum gives each tile its place in the list: the lists are in order, and nothing is atomic.
            tl.store(column_tiles + offset + n_partial + tl.cumsum(partial, 0) - 1, row, is_partial)
            tl.store(full_column_tiles + offset + n_full + tl.cumsum(whole, 0) - 1, row, is_full)
            n_partial += tl.sum(partial, 0)
            n_full += tl.sum(whole, 0)
        tl.store(column_counts + batch * n_columns + column, n_partial)
        tl.store(full_column_counts + batch * n_columns + column, n_full)
