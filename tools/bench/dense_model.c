/* tools/bench/dense_model.c - see dense_model.h. */
#include "tools/bench/dense_model.h"

#include "tools/bench/run_pipeline.h"

void dense_model_make(const char *name)
{
    run_or_fail("hill-mkmodel",
                capture("build/bin/hill-mkmodel -o %s/%s.gguf --random --layers %u --width %u "
                        "--heads %u --kv-heads %u --head-dim %u --ffn %u --vocab %u --type f16 >&2",
                        pipeline_folder, name, MODEL_LAYERS, MODEL_WIDTH, MODEL_HEADS, MODEL_HEADS,
                        MODEL_WIDTH / MODEL_HEADS, MODEL_FFN, MODEL_VOCAB));
}

void dense_model_prepare(const struct bench_options *o)
{
    pipeline_prepare_folder(o);
    dense_model_make("model");
}
