/* gpu_worker/away.c - see away.h. */
#include "gpu_worker/away.h"

#include "base/log.h"
#include "gpu_worker/stored_internal.h"

static bool has_windows(const struct worker *w)
{
    for (uint32_t layer = 0; layer < w->hparams.n_layers; layer++)
        if (model_layer_window(&w->hparams, layer))
            return true;
    return false;
}

bool away_is_asked(const struct worker *w)
{
    return w->settings.prefix_away && !has_windows(w);
}

void away_note_windows(const struct worker *w)
{
    if (w->settings.prefix_away && has_windows(w))
        log_warn("--prefix-unimportant never: layers of this model have windows and take other "
                 "numbers of tokens; unimportant tokens stay away from the first token alone");
}

/* Of the prompt, on the request's slot. A sequence that has begun there has cleared it. */
static uint32_t offered(const struct request *r)
{
    return r->prefill->reuse && !r->begun ? r->prefill->reuse->tokens : 0;
}

int away_plan(struct request *r, struct hill_why *why)
{
    r->holds_chosen = false;
    r->n_away = 0;
    if (!away_is_asked(r->w) || r->prefill->save)
        return 0;
    r->reused = offered(r);
    int rc = stored_find(r, why);
    r->holds_chosen = !rc && r->stored && selected_suits(r);
    r->reused = 0;
    if (r->holds_chosen)
        r->n_away = selected_cut(r);
    else
        stored_drop(r);
    return rc;
}

bool away_comes_late(const struct request *r)
{
    return away_is_asked(r->w) && !r->prefill->save && !r->holds_chosen && selected_suits(r);
}

/* As many as a prompt over all of them reports. */
static void note_prefix(struct request *r)
{
    r->reused = r->drive_tokens = r->n_plain = r->stored->hit.n_tokens;
    r->chose = true;
    stored_drop(r);
}

void away_end(struct request *r)
{
    struct stored *x = r->stored;
    for (uint32_t i = 0; i < x->hit.n_chunks; i++) {
        r->saved_ms += drive_store_cost(r->w->store, x->chunks[i]) * 1e-3;
        drive_store_use(r->w->store, x->chunks[i]);
    }
    log_info("request %llu: %u of the %u tokens that the prefix store has of it stay away",
             (unsigned long long)r->prefill->identity, r->n_away, x->hit.n_tokens);
    selected_drop(r);
    note_prefix(r);
}

void away_resume(struct request *r)
{
    if (r->holds_chosen)
        note_prefix(r);
}
