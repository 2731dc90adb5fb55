/* The envelope: what a well-formed message survives, and that nothing malformed is ever fatal. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include <cmocka.h>
#include <zmq.h>

#include "kv/plan.h"
#include "proto/envelope.h"

static const uint8_t good_frame[8] = {'H', 'I', 'L', 'L', PROTO_VERSION, 0, 0, 0};

static size_t pack(const Hill__Message *message, uint8_t *out)
{
    return hill__message__pack(message, out);
}

static size_t pack_hello(uint8_t *out)
{
    Hill__Hello hello = HILL__HELLO__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    hello.role = HILL__ROLE__ROLE_GPU_WORKER;
    hello.pid = 42;
    hello.version = (char *)"1.2";
    message.body_case = HILL__MESSAGE__BODY_HELLO;
    message.hello = &hello;
    return pack(&message, out);
}

static void decodes_what_was_packed(void **state)
{
    (void)state;
    uint8_t body[256];
    size_t size = pack_hello(body);
    Hill__Message *message;
    assert_int_equal(proto_decode(good_frame, 8, body, size, &message, NULL), 0);
    assert_int_equal(message->body_case, HILL__MESSAGE__BODY_HELLO);
    assert_int_equal(message->hello->pid, 42);
    assert_string_equal(message->hello->version, "1.2");
    proto_free(message);
}

static size_t pack_cancel(uint8_t *out)
{
    Hill__Cancel cancel = HILL__CANCEL__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    cancel.request_id = 5;
    message.body_case = HILL__MESSAGE__BODY_CANCEL;
    message.cancel = &cancel;
    return pack(&message, out);
}

static void refuses_other_envelopes(void **state)
{
    (void)state;
    uint8_t body[256], frame[8];
    size_t size = pack_cancel(body);
    Hill__Message *message;
    struct hill_why why;
    for (unsigned i = 0; i < 8; i++) {
        memcpy(frame, good_frame, 8);
        frame[i] ^= 1;
        assert_int_equal(proto_decode(frame, 8, body, size, &message, &why), HILL_E_PROTOCOL);
        assert_null(message);
    }
    assert_int_equal(proto_decode(good_frame, 7, body, size, &message, &why), HILL_E_PROTOCOL);
    frame[4] = 9;
    memcpy(frame, "HILL", 4);
    frame[7] = 0;
    assert_int_equal(proto_decode(frame, 8, body, size, &message, &why), HILL_E_PROTOCOL);
    assert_non_null(strstr(why.text, "version 9"));
}

/* So that who sent it can be named. */
static void a_hello_of_another_version_is_read_and_says_which(void **state)
{
    (void)state;
    uint8_t body[256], frame[8];
    size_t size = pack_hello(body);
    Hill__Message *message;
    for (unsigned version = 0; version < 1000; version += 37) {
        memcpy(frame, good_frame, 8);
        frame[4] = version & 0xff;
        frame[5] = (uint8_t)(version >> 8);
        assert_int_equal(proto_decode(frame, 8, body, size, &message, NULL), 0);
        assert_int_equal(message->hello->protocol_version, version);
        proto_free(message);
    }
    frame[0] = 'h';
    assert_int_equal(proto_decode(frame, 8, body, size, &message, NULL), HILL_E_PROTOCOL);
}

static void refuses_an_empty_message(void **state)
{
    (void)state;
    Hill__Message *message;
    assert_int_equal(proto_decode(good_frame, 8, "", 0, &message, NULL), HILL_E_PROTOCOL);
}

/* Generate with one field out of range: the field is named. */
static void names_the_field_out_of_range(void **state)
{
    (void)state;
    static const struct {
        const char *field;
        float temperature, top_p, repeat_penalty;
        double alpha;
        uint32_t policy, unset;
    } cases[] = {
        {"temperature", -1, 1, 1, 0.2, 0},
        {"temperature", NAN, 1, 1, 0.2, 0},
        {"top_p", 0, 1.5f, 1, 0.2, 0},
        {"repeat_penalty", 0, 1, 0, 0.2, 0},
        {"alpha", 0, 1, 1, 0, 0},
        {"alpha", 0, 1, 1, 1.01, 0},
        {"alpha", 0, 1, 1, (double)INFINITY, 0},
        {"policy", 0, 1, 1, 0.2, 77},
        {"unset", 0, 1, 1, 0.2, 0, 32},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Hill__Sampling sampling = HILL__SAMPLING__INIT;
        Hill__Selection selection = HILL__SELECTION__INIT;
        Hill__Generate generate = HILL__GENERATE__INIT;
        Hill__Message message = HILL__MESSAGE__INIT, *parsed;
        struct hill_why why;
        uint8_t body[512];
        sampling.temperature = cases[i].temperature;
        sampling.top_p = cases[i].top_p;
        sampling.repeat_penalty = cases[i].repeat_penalty;
        sampling.unset = cases[i].unset;
        selection.alpha = cases[i].alpha;
        selection.policy = cases[i].policy;
        generate.sampling = &sampling;
        generate.selection = &selection;
        message.body_case = HILL__MESSAGE__BODY_GENERATE;
        message.generate = &generate;
        assert_int_equal(proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why),
                         HILL_E_PROTOCOL);
        assert_non_null(strstr(why.text, cases[i].field));
    }
}

static void refuses_pieces_beside_a_prompt_and_of_no_kind(void **state)
{
    (void)state;
    for (int bad = 0; bad < 3; bad++) {
        Hill__Sampling sampling = HILL__SAMPLING__INIT;
        Hill__Generate generate = HILL__GENERATE__INIT;
        Hill__PromptPiece piece = HILL__PROMPT_PIECE__INIT, *pieces = &piece;
        Hill__Message message = HILL__MESSAGE__INIT, *parsed = NULL;
        struct hill_why why;
        uint8_t body[512], text[] = "x";
        sampling.top_p = sampling.repeat_penalty = 1;
        generate.sampling = &sampling;
        generate.pieces = &pieces;
        generate.n_pieces = 1;
        piece.text = (ProtobufCBinaryData){1, text};
        if (bad == 1)
            generate.prompt = piece.text;
        if (bad == 2)
            piece.kind = (Hill__PromptKind)3;
        message.body_case = HILL__MESSAGE__BODY_GENERATE;
        message.generate = &generate;
        assert_int_equal(proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why),
                         bad ? HILL_E_PROTOCOL : 0);
        if (bad)
            assert_non_null(strstr(why.text, bad == 1 ? "pieces" : "pieces.kind"));
        else
            proto_free(parsed);
    }
}

/* What a token log begins with comes from a file: a prompt is there, and numbers are in range. */
static void refuses_an_order_that_is_not_whole(void **state)
{
    (void)state;
    static const char *const fields[] = {"", "request_id", "key", "terms", "prefill", "tokens"};
    for (int bad = 0; bad < 6; bad++) {
        Hill__Sampling sampling = HILL__SAMPLING__INIT;
        Hill__Selection selection = HILL__SELECTION__INIT;
        Hill__Prefill prefill = HILL__PREFILL__INIT;
        Hill__RequestOrder order = HILL__REQUEST_ORDER__INIT;
        Hill__Message message = HILL__MESSAGE__INIT, *parsed = NULL;
        struct hill_why why;
        uint8_t body[512], terms[PROTO_SESSION_TERMS_BYTES] = {0};
        uint32_t prompt[] = {1, 2};
        sampling.top_p = sampling.repeat_penalty = 1;
        selection.alpha = 0.2;
        prefill.tokens = prompt;
        prefill.n_tokens = bad == 5 ? 0 : 2;
        prefill.predict = 4;
        prefill.sampling = &sampling;
        prefill.selection = &selection;
        order.request_id = bad != 1;
        order.key = bad != 2;
        order.terms = (ProtobufCBinaryData){bad == 3 ? 7 : sizeof terms, terms};
        order.prefill = bad == 4 ? NULL : &prefill;
        message.body_case = HILL__MESSAGE__BODY_REQUEST_ORDER;
        message.request_order = &order;
        assert_int_equal(proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why),
                         bad ? HILL_E_PROTOCOL : 0);
        if (bad)
            assert_non_null(strstr(why.text, fields[bad]));
        else
            proto_free(parsed);
    }
}

static void refuses_a_follow_of_nobody(void **state)
{
    (void)state;
    for (int bad = 0; bad < 3; bad++) {
        Hill__Follow follow = HILL__FOLLOW__INIT;
        Hill__Message message = HILL__MESSAGE__INIT, *parsed = NULL;
        struct hill_why why;
        uint8_t body[64];
        follow.key = bad != 1;
        follow.serial = bad != 2;
        message.body_case = HILL__MESSAGE__BODY_FOLLOW;
        message.follow = &follow;
        assert_int_equal(proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why),
                         bad ? HILL_E_PROTOCOL : 0);
        if (bad)
            assert_non_null(strstr(why.text, bad == 1 ? "key" : "serial"));
        else
            proto_free(parsed);
    }
}

/* Given tokens only where a prompt is answered again, and none of that is saved. */
static void refuses_a_restored_session_that_makes_no_sense(void **state)
{
    (void)state;
    static const struct {
        const char *field; /* NULL: it is fine */
        const char *path, *save;
        size_t n_forced;
        bool from_prompt;
        double alpha;
    } cases[] = {{NULL, "/s", "/t", 0, true, 0.5},       {NULL, "/s", "", 2, true, 0.5},
                 {NULL, "/s", "/t", 0, false, 0.5},      {"path", "s", "", 0, false, 0.5},
                 {"save_path", "/s", "t", 0, true, 0.5}, {"save_path", "/s", "/t", 2, true, 0.5},
                 {"from_prompt", "/s", "", 2, false, 1}, {"alpha", "/s", "", 2, true, 1.5}};
    uint32_t tokens[2] = {1, 2};
    for (unsigned i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Hill__Selection selection = HILL__SELECTION__INIT;
        Hill__RestoreSession restore = HILL__RESTORE_SESSION__INIT;
        Hill__Message message = HILL__MESSAGE__INIT, *parsed = NULL;
        struct hill_why why;
        uint8_t body[512];
        selection.alpha = cases[i].alpha;
        restore.path = (char *)cases[i].path;
        restore.save_path = (char *)cases[i].save;
        restore.selection = &selection;
        restore.from_prompt = cases[i].from_prompt;
        restore.forced = tokens;
        restore.n_forced = cases[i].n_forced;
        message.body_case = HILL__MESSAGE__BODY_RESTORE_SESSION;
        message.restore_session = &restore;
        assert_int_equal(proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why),
                         cases[i].field ? HILL_E_PROTOCOL : 0);
        if (cases[i].field)
            assert_non_null(strstr(why.text, cases[i].field));
        else
            proto_free(parsed);
    }
}

static void refuses_a_device_model_out_of_range(void **state)
{
    (void)state;
    for (int bad = 0; bad < 8; bad++) {
        struct csd_model model = CSD_MODEL_SMARTSSD;
        model.cpu = 0.5;
        double *figures[] = {&model.flash, &model.write, &model.link, &model.gpu_link,
                             &model.score, &model.cpu,   &model.flash};
        Hill__CsdModel wire;
        Hill__Message message = HILL__MESSAGE__INIT, *parsed = NULL;
        uint8_t body[512];
        struct hill_why why;
        if (bad < 7)
            *figures[bad] = bad == 6 ? NAN : -1;
        proto_set_csd_model(&wire, &model);
        message.body_case = HILL__MESSAGE__BODY_CSD_MODEL;
        message.csd_model = &wire;
        int code = proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why);
        assert_int_equal(code, bad < 7 ? HILL_E_PROTOCOL : 0);
        if (bad < 7) {
            assert_non_null(strstr(why.text, "csd_model"));
            continue;
        }
        struct csd_model back = proto_csd_model(parsed->csd_model);
        assert_true(csd_model_same(&back, &model));
        proto_free(parsed);
    }
}

/* Forced tokens are none or as many as are predicted; a log-probability is a number up to 0. */
static void refuses_half_of_what_is_to_be_scored(void **state)
{
    (void)state;
    static const double logprobs[] = {0.5, NAN, -INFINITY, -700, 0};
    uint32_t tokens[3] = {1, 2, 3};
    Hill__Message *parsed;
    uint8_t body[512];
    struct hill_why why;
    for (size_t n_forced = 0; n_forced <= 3; n_forced++) {
        Hill__Sampling sampling = HILL__SAMPLING__INIT;
        Hill__Selection selection = HILL__SELECTION__INIT;
        Hill__Prefill prefill = HILL__PREFILL__INIT;
        Hill__Message message = HILL__MESSAGE__INIT;
        sampling.repeat_penalty = 1;
        selection.alpha = 0.5;
        prefill.tokens = prefill.forced = tokens;
        prefill.n_tokens = 3;
        prefill.n_forced = n_forced;
        prefill.predict = 2;
        prefill.sampling = &sampling;
        prefill.selection = &selection;
        message.body_case = HILL__MESSAGE__BODY_PREFILL;
        message.prefill = &prefill;
        assert_int_equal(proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why),
                         n_forced == 0 || n_forced == 2 ? 0 : HILL_E_PROTOCOL);
        proto_free(parsed);
    }
    for (unsigned i = 0; i < sizeof logprobs / sizeof logprobs[0]; i++) {
        Hill__Token token = HILL__TOKEN__INIT;
        Hill__Message message = HILL__MESSAGE__INIT;
        token.logprob = logprobs[i];
        message.body_case = HILL__MESSAGE__BODY_TOKEN;
        message.token = &token;
        assert_int_equal(proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why),
                         i < 3 ? HILL_E_PROTOCOL : 0);
        proto_free(parsed);
    }
}

static void refuses_a_heartbeat_with_half_its_statistics(void **state)
{
    (void)state;
    Hill__TierStats tier = HILL__TIER_STATS__INIT;
    for (int missing = 0; missing < 5; missing++) {
        Hill__SequenceStats live = HILL__SEQUENCE_STATS__INIT;
        Hill__Heartbeat beat = HILL__HEARTBEAT__INIT;
        Hill__Message message = HILL__MESSAGE__INIT, *parsed;
        uint8_t body[512];
        struct hill_why why;
        live.gpu = missing == 1 ? NULL : &tier;
        live.hot = missing == 2 ? NULL : &tier;
        live.cold = missing == 3 ? NULL : &tier;
        live.merge_ms = missing == 4 ? -1 : 1;
        beat.role = HILL__ROLE__ROLE_CPU_SCORER;
        beat.pid = 7;
        beat.live = &live;
        message.body_case = HILL__MESSAGE__BODY_HEARTBEAT;
        message.heartbeat = &beat;
        assert_int_equal(proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why),
                         missing ? HILL_E_PROTOCOL : 0);
        proto_free(parsed);
    }
}

static void refuses_a_heartbeat_with_others_that_make_no_sense(void **state)
{
    (void)state;
    Hill__TierStats tier = HILL__TIER_STATS__INIT;
    for (int wrong = 0; wrong < 4; wrong++) {
        Hill__SequenceStats live = HILL__SEQUENCE_STATS__INIT, other,
                            *others[KV_MAX_SEQUENCES] = {0};
        Hill__Heartbeat beat = HILL__HEARTBEAT__INIT;
        Hill__Message message = HILL__MESSAGE__INIT, *parsed;
        static uint8_t body[8192];
        struct hill_why why;
        live.gpu = live.hot = live.cold = &tier;
        other = live;
        other.fetch_ms = wrong == 1 ? -1 : 1;
        for (uint32_t i = 0; i < KV_MAX_SEQUENCES; i++)
            others[i] = &other;
        beat.role = HILL__ROLE__ROLE_CPU_SCORER;
        beat.pid = 7;
        beat.live = wrong == 2 ? NULL : &live;
        beat.live_others = others;
        beat.n_live_others = wrong == 3 ? KV_MAX_SEQUENCES : KV_MAX_SEQUENCES - 1;
        message.body_case = HILL__MESSAGE__BODY_HEARTBEAT;
        message.heartbeat = &beat;
        assert_int_equal(proto_decode(good_frame, 8, body, pack(&message, body), &parsed, &why),
                         wrong ? HILL_E_PROTOCOL : 0);
        proto_free(parsed);
    }
}

static void survives_damaged_bytes(void **state)
{
    (void)state;
    Hill__Selection selection = HILL__SELECTION__INIT;
    Hill__Sampling sampling = HILL__SAMPLING__INIT;
    Hill__Prefill prefill = HILL__PREFILL__INIT;
    Hill__Message message = HILL__MESSAGE__INIT;
    uint32_t tokens[20];
    for (uint32_t i = 0; i < 20; i++)
        tokens[i] = i * 1000;
    selection.alpha = 0.5;
    sampling.repeat_penalty = 1;
    prefill.tokens = tokens;
    prefill.n_tokens = 20;
    prefill.predict = 3;
    prefill.sampling = &sampling;
    prefill.selection = &selection;
    message.body_case = HILL__MESSAGE__BODY_PREFILL;
    message.prefill = &prefill;
    uint8_t body[512];
    size_t size = pack(&message, body);
    unsigned seed = 20261121, refused = 0;
    print_message("seed %u\n", seed);
    srand(seed);
    for (int round = 0; round < 20000; round++) {
        /* an exact-size copy, so that ASan sees a read past the end */
        size_t cut = rand() % 4 ? size : (size_t)rand() % (size + 1);
        uint8_t *copy = malloc(cut ? cut : 1);
        memcpy(copy, body, cut);
        for (int flips = rand() % 4; flips > 0 && cut; flips--)
            copy[(size_t)rand() % cut] ^= (uint8_t)(1u << (rand() % 8));
        Hill__Message *parsed;
        int code = proto_decode(good_frame, 8, copy, cut, &parsed, NULL);
        if (code == 0)
            assert_int_equal(proto_validate(parsed, NULL), 0);
        else
            refused++;
        proto_free(parsed);
        free(copy);
    }
    assert_true(refused > 1000);
}

/* A ROUTER that is sent rubbish answers HILL_E_PROTOCOL, knows the sender, and goes on. */
static void rubbish_on_a_socket_is_not_fatal(void **state)
{
    (void)state;
    void *context = zmq_ctx_new();
    void *router = zmq_socket(context, ZMQ_ROUTER), *dealer = zmq_socket(context, ZMQ_DEALER);
    assert_int_equal(zmq_bind(router, "inproc://envelope"), 0);
    assert_int_equal(zmq_connect(dealer, "inproc://envelope"), 0);
    Hill__Message *message;
    struct hill_why why;
    struct proto_address from;

    assert_int_equal(proto_receive(router, &from, &message, &why), HILL_E_WOULD_BLOCK);
    zmq_send(dealer, "rubbish", 7, 0);
    assert_int_equal(proto_receive(router, &from, &message, &why), HILL_E_PROTOCOL);
    assert_true(from.length > 0);
    for (int part = 0; part < 4; part++)
        zmq_send(dealer, "x", 1, ZMQ_SNDMORE);
    zmq_send(dealer, "x", 1, 0);
    assert_int_equal(proto_receive(router, &from, &message, &why), HILL_E_PROTOCOL);

    Hill__Reply reply = HILL__REPLY__INIT;
    Hill__Message answer = HILL__MESSAGE__INIT;
    reply.code = HILL_E_PROTOCOL;
    reply.text = why.text;
    answer.body_case = HILL__MESSAGE__BODY_REPLY;
    answer.reply = &reply;
    assert_int_equal(proto_send(router, &from, &answer), 0);
    assert_int_equal(proto_receive(dealer, NULL, &message, &why), 0);
    assert_string_equal(message->reply->text, reply.text);
    proto_free(message);
    zmq_close(router);
    zmq_close(dealer);
    zmq_ctx_term(context);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(decodes_what_was_packed),
        cmocka_unit_test(refuses_other_envelopes),
        cmocka_unit_test(a_hello_of_another_version_is_read_and_says_which),
        cmocka_unit_test(refuses_an_empty_message),
        cmocka_unit_test(names_the_field_out_of_range),
        cmocka_unit_test(refuses_half_of_what_is_to_be_scored),
        cmocka_unit_test(refuses_a_heartbeat_with_half_its_statistics),
        cmocka_unit_test(refuses_a_heartbeat_with_others_that_make_no_sense),
        cmocka_unit_test(refuses_pieces_beside_a_prompt_and_of_no_kind),
        cmocka_unit_test(refuses_an_order_that_is_not_whole),
        cmocka_unit_test(refuses_a_follow_of_nobody),
        cmocka_unit_test(refuses_a_restored_session_that_makes_no_sense),
        cmocka_unit_test(refuses_a_device_model_out_of_range),
        cmocka_unit_test(survives_damaged_bytes),
        cmocka_unit_test(rubbish_on_a_socket_is_not_fatal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
