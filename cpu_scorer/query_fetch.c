/* cpu_scorer/query_fetch.c - see query_fetch.h. */
#include "cpu_scorer/query_fetch.h"

#include "base/fault.h"

_Static_assert(sizeof(struct fetch_row) == sizeof(struct fetch_item), "a row takes an item's room");

bool query_fetch_waits(const struct query *q)
{
    return q->phase == QUERY_GATHER && !q->gather_began_ns && q->answer.n_fetches && !q->status;
}

/* What the rows have to fetch of one drive. */
struct share {
    uint32_t entries, rows; /* rows with some */
    void *record;
};

static struct share share_of(struct query *const *rows, uint32_t n, uint32_t drive)
{
    struct share out = {0};
    for (uint32_t i = 0; i < n; i++) {
        out.entries += rows[i]->answer.drives[drive].n_fetches;
        out.rows += rows[i]->answer.drives[drive].n_fetches > 0;
    }
    return out;
}

/* Items, and rows after the first. */
static uint32_t parts(const struct share *s)
{
    return s->entries + s->rows - 1;
}

static uint32_t bytes_of(const struct share *s)
{
    return (uint32_t)(sizeof(struct record_fetch) + parts(s) * sizeof(struct fetch_item));
}

/* Room for one command to each drive that has something: 1, 0, or negative: it takes more than one,
 * or the agent is lost. */
static int reserve(struct agent *a, struct query *const *rows, uint32_t n, struct share *shares)
{
    int rc = 1;
    for (uint32_t d = 0; d < a->n_drives; d++) {
        shares[d] = share_of(rows, n, d);
        if (shares[d].rows && parts(&shares[d]) > agent_fetch_max(a, d))
            return HILL_E_TOO_LONG;
    }
    for (uint32_t d = 0; rc == 1 && d < a->n_drives; d++)
        if (shares[d].rows)
            rc = agent_reserve(a, d, bytes_of(&shares[d]), &shares[d].record);
    return rc;
}

static void push(struct agent *a, uint32_t drive, struct query *const *rows, uint32_t n,
                 const struct share *s)
{
    struct record_fetch *record = s->record;
    struct fetch_item *items = (struct fetch_item *)(record + 1);
    struct fetch_row *further = (struct fetch_row *)(items + s->entries);
    uint32_t at = 0;
    *record =
        (struct record_fetch){.tag = agent_tag(a), .n_entries = s->entries, .n_rows = s->rows - 1};
    for (uint32_t i = 0; i < n; i++) {
        const struct record_header *h = &rows[i]->header;
        uint32_t entries = rows[i]->answer.drives[drive].n_fetches;
        if (entries == 0)
            continue;
        if (at == 0)
            record->header = *h;
        else
            *further++ = (struct fetch_row){.sequence = h->sequence, .step = h->step, .first = at};
        answer_join_fetch(&rows[i]->answer, drive, items + at, record->tag,
                          s->rows > 1 ? s->entries : 0);
        at += entries;
    }
    agent_publish(a, drive, RING_COMMAND, RECORD_FETCH, bytes_of(s));
    FAULT_POINT(cpu_scorer, fetch, pushed);
}

int query_fetch_together(struct core *c, struct agent *a, struct query *const *rows, uint32_t n)
{
    struct share shares[LAYOUT_DRIVES_MAX];
    int rc = reserve(a, rows, n, shares);
    if (rc != 1)
        return rc;
    for (uint32_t i = 0; i < n; i++) {
        rows[i]->status = query_place(c, rows[i]);
        if (rows[i]->status)
            return rows[i]->status;
    }
    for (uint32_t d = 0; d < a->n_drives; d++)
        if (shares[d].rows)
            push(a, d, rows, n, &shares[d]);
    for (uint32_t i = 0; i < n; i++)
        rows[i]->answer.pushed = true;
    return 1;
}
