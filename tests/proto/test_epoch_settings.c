/*
 * tests/proto/test_epoch_settings.c - proto/epoch_settings.[ch]: a Configure whose every field is
 * random comes back with the same bytes, so that no field is forgotten on the way; names; numbers
 * that do not go together are refused. The oracle is protobuf's own list of fields.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "placement/placement.h"
#include "proto/epoch_settings.h"
#include "tests/proto/configure.h"

#define SEED   11
#define ROUNDS 200

static char texts[64][16];
static unsigned n_texts;

static void fill_random(ProtobufCMessage *message);

static void *new_message(const ProtobufCMessageDescriptor *type)
{
    ProtobufCMessage *message = calloc(1, type->sizeof_message);
    assert_non_null(message);
    type->message_init(message);
    fill_random(message);
    return message;
}

static void fill_field(const ProtobufCFieldDescriptor *field, void *at)
{
    const ProtobufCEnumDescriptor *choices = field->descriptor;
    switch (field->type) {
    case PROTOBUF_C_TYPE_UINT32:
        *(uint32_t *)at = (uint32_t)random();
        break;
    case PROTOBUF_C_TYPE_UINT64:
        *(uint64_t *)at = (uint64_t)random() << 20;
        break;
    case PROTOBUF_C_TYPE_DOUBLE:
        *(double *)at = (double)random() / 7;
        break;
    case PROTOBUF_C_TYPE_BOOL:
        *(protobuf_c_boolean *)at = 1;
        break;
    case PROTOBUF_C_TYPE_ENUM:
        *(int *)at = choices->values[1 + (unsigned)random() % (choices->n_values - 1)].value;
        break;
    case PROTOBUF_C_TYPE_STRING:
        snprintf(texts[n_texts], sizeof texts[0], "%ld", random());
        *(char **)at = texts[n_texts++];
        break;
    case PROTOBUF_C_TYPE_MESSAGE:
        *(void **)at = new_message(field->descriptor);
        break;
    default:
        fail_msg("a field of another type: %s", field->name);
    }
}

static void fill_random(ProtobufCMessage *message)
{
    for (unsigned i = 0; i < message->descriptor->n_fields; i++) {
        const ProtobufCFieldDescriptor *field = &message->descriptor->fields[i];
        if (field->label == PROTOBUF_C_LABEL_REPEATED)
            continue; /* filled by add_drives */
        fill_field(field, (uint8_t *)message + field->offset);
    }
}

/* Two to four of them, or one, which has no list. */
static void add_drives(Hill__Configure *c, Hill__Drive **list, uint32_t n)
{
    c->csd_drives = n;
    c->csd_drive %= n;
    c->n_drives = n > 1 ? n : 0;
    c->drives = list;
    for (uint32_t i = 0; i < c->n_drives; i++)
        list[i] = new_message(&hill__drive__descriptor);
}

static void test_every_field_survives(void **state)
{
    static uint8_t before[4096], after[4096];
    struct hill_why why;
    (void)state;
    print_message("seed %d\n", SEED);
    srandom(SEED);
    for (int round = 0; round < ROUNDS; round++) {
        Hill__Configure c;
        Hill__Drive *drives[LAYOUT_DRIVES_MAX];
        struct epoch_settings s;
        struct epoch_wire wire;
        n_texts = 0;
        hill__configure__init(&c);
        fill_random(&c.base);
        c.n_layers = c.n_kv_heads = c.n_heads = 1 + (uint32_t)round % 7; /* what fits together */
        c.head_dim = 32;
        c.score_bits = round % 2 ? 8 : 4;
        c.threads = 1 + (uint32_t)round;
        c.csd_cast = round % 2;
        if (c.csd_cast)
            c.selection->policy = HILL__POLICY__POLICY_HILLINFER;
        c.selection->exact_below %= KV_EXACT_BELOW_MAX;
        c.selection->granularity = 1u << round % 7;
        c.ctx_tokens = 5000;
        c.gpu_slots = 1 + c.gpu_slots % c.ctx_tokens;
        c.block_tokens = 1 + c.block_tokens % 256;
        c.n_sequences = 1 + c.n_sequences % KV_MAX_SEQUENCES;
        add_drives(&c, drives, 1 + (uint32_t)round % LAYOUT_DRIVES_MAX);
        assert_int_equal(epoch_settings_read(&s, &c, &why), 0);
        epoch_settings_to_wire(&wire, &s);
        size_t n = hill__configure__pack(&c, before);
        assert_true(n < sizeof before);
        assert_int_equal(hill__configure__pack(&wire.configure, after), n);
        assert_memory_equal(before, after, n);
        for (size_t i = 0; i < c.n_drives; i++)
            free(drives[i]);
        free(c.selection);
        free(c.csd_model);
    }
}

static void test_numbers_that_do_not_go_together(void **state)
{
    const struct layout_input layout = {{2, 4, 2, 32}, 256, 2};
    struct epoch_settings good = make_settings(&layout, 1), s;
    struct hill_why why;
    (void)state;
    assert_int_equal(epoch_settings_check(&good, &why), 0);
#define REFUSED(change, said)                                                                      \
    (s = good, s.change, why.text[0] = '\0',                                                       \
     assert_int_equal(epoch_settings_check(&s, &why), HILL_E_INVALID),                             \
     assert_non_null(strstr(why.text, said)))
    REFUSED(plan.n_sequences = 0, "0 sequences (--parallel): at least 1");
    REFUSED(plan.n_sequences = 65, "65 sequences (--parallel): at most 64");
    REFUSED(threads = 1025, "1025 threads (--threads): at most 1024");
    REFUSED(gpu_slots = 0, "(--gpu-kv-mb): at least 1");
    REFUSED(gpu_slots = 257, "(--gpu-kv-mb): at most 256");
    REFUSED(block_tokens = 0, "(--block-tokens): at least 1");
    REFUSED(block_tokens = 1u << 20, "(--block-tokens): at most 4096");
    REFUSED(staging_slots = 0, "(--hot-mb): at least 1");
    REFUSED(beta = -1, "beta -1 (--beta): at least 0");
    REFUSED(plan.geometry.head_dim = 0, "");
}

static void test_names(void **state)
{
    static const char *const simds[] = {"auto", "reference", "avx2", "avx512", "avx512vnni"};
    Hill__Simd simd;
    Hill__Speculate speculate;
    Hill__Placement placement;
    (void)state;
    for (unsigned i = 0; i < sizeof simds / sizeof *simds; i++) {
        assert_int_equal(epoch_simd_parse(simds[i], &simd), 0);
        assert_string_equal(epoch_simd_name(simd), simds[i]);
    }
    assert_int_equal(epoch_simd_parse("sse9", &simd), HILL_E_INVALID);
    assert_int_equal(epoch_speculate_parse("verify", &speculate), 0);
    assert_string_equal(epoch_speculate_name(speculate), "verify");
    assert_int_equal(epoch_speculate_parse("", &speculate), HILL_E_INVALID);
    for (unsigned i = 0; i < PLACEMENT_LIVE_COUNT; i++) {
        assert_int_equal(epoch_placement_parse(placement_name(i), &placement), 0);
        assert_int_equal(placement, i);
    }
    assert_int_equal(epoch_placement_parse("belady", &placement), HILL_E_INVALID);
    assert_int_equal(epoch_placement_parse("BKP", &placement), HILL_E_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_field_survives),
        cmocka_unit_test(test_numbers_that_do_not_go_together),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests_name("epoch_settings", tests, NULL, NULL);
}
