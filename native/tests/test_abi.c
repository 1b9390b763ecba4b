/* The header as C99, and the library through it: a whole tiny model (all GDN, float32 projections),
 * each refusal, and that the state is byte for byte what it was after one. Exit code 0 and
 * "test_abi: N checks passed" when all hold. */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "vllm_cuda.h"

static int checks, failures;

static void expect(int ok, const char* what) {
  ++checks;
  if (!ok) {
    ++failures;
    printf("test_abi: FAILED: %s (last error: %s)\n", what, vcuda_last_error());
  }
}

static void expect_refusal(vcuda_status got, vcuda_status wanted, const char* text,
                           const char* what) {
  expect(got == wanted && strstr(vcuda_last_error(), text) != NULL, what);
}

enum { H = 64, I = 96, V = 128, HEADS = 2, DIM = 32, LAYERS = 2, MOST = 64 };

static vcuda_tensor tensors[MOST];
static char names[MOST][96];
static uint64_t count;

static uint64_t fnv1a(const char* s) {
  uint64_t h = 0xcbf29ce484222325u;
  for (; *s; ++s) h = (h ^ (uint8_t)*s) * 0x100000001b3u;
  return h;
}

static vcuda_tensor* add(const char* prefix, const char* name, int type, int64_t rows, int64_t cols,
                         float offset, float scale) {
  vcuda_tensor* t = &tensors[count];
  memset(t, 0, sizeof *t);
  snprintf(names[count], sizeof names[count], "%s%s", prefix, name);
  t->struct_size = sizeof *t;
  t->type = type;
  t->name = names[count++];
  t->shape[0] = rows;
  t->shape[1] = cols;
  t->ndim = cols ? 2 : 1;
  t->synth.seed = 1;
  t->synth.key = fnv1a(t->name);
  t->synth.offset = offset;
  t->synth.scale = scale;
  return t;
}

/* One GDN and one attention layer; out_proj of the first as `out_type`. */
static void make_tensors(int out_type) {
  static const char* const prefixes[LAYERS] = {"model.layers.0.", "model.layers.1."};
  const int64_t key = HEADS * DIM, value = HEADS * DIM, conv = 2 * key + value;
  count = 0;
  add("", "model.embed_tokens.weight", VCUDA_BF16, V, H, 0, 1);
  add("", "model.norm.weight", VCUDA_F32, H, 0, 0, 0.25f);
  add("", "lm_head.weight", VCUDA_Q4, V, H, 0, 0.05f);
  add("", "rope.inv_freq", VCUDA_F32, 4, 0, 0.5f, 0.5f);
  for (int l = 0; l < LAYERS; ++l) {
    const char* p = prefixes[l];
    add(p, "input_layernorm.weight", VCUDA_F32, H, 0, 0, 0.25f);
    add(p, "post_attention_layernorm.weight", VCUDA_F16, H, 0, 0, 0.25f);
    add(p, "mlp.gate_proj.weight", VCUDA_Q4, I, H, 0, 0.03f);
    add(p, "mlp.up_proj.weight", VCUDA_Q4, I, H, 0, 0.03f);
    add(p, "mlp.down_proj.weight", VCUDA_Q4, H, I, 0, 0.03f);
    if (l == 0) {
      vcuda_tensor* t;
      add(p, "linear_attn.in_proj_qkv.weight", VCUDA_Q4, conv, H, 0, 0.03f);
      add(p, "linear_attn.in_proj_z.weight", VCUDA_Q4, value, H, 0, 0.03f);
      add(p, "linear_attn.in_proj_b.weight", VCUDA_F32, HEADS, H, 0, 0.2f);
      add(p, "linear_attn.in_proj_a.weight", VCUDA_BF16, HEADS, H, 0, 0.2f);
      add(p, "linear_attn.out_proj.weight", out_type, H, value, 0, 0.03f);
      t = add(p, "linear_attn.conv1d.weight", VCUDA_F32, conv, 1, 0, 0.8f);
      t->shape[2] = 4;
      t->ndim = 3;
      add(p, "linear_attn.A_log", VCUDA_F32, HEADS, 0, -0.5f, 2);
      add(p, "linear_attn.dt_bias", VCUDA_F32, HEADS, 0, -1, 2);
      add(p, "linear_attn.norm.weight", VCUDA_F32, DIM, 0, 1, 0.3f);
    } else {
      add(p, "self_attn.q_proj.weight", VCUDA_Q4, 2 * HEADS * DIM, H, 0, 0.03f);
      add(p, "self_attn.k_proj.weight", VCUDA_Q4, DIM, H, 0, 0.03f);
      add(p, "self_attn.v_proj.weight", VCUDA_Q4, DIM, H, 0, 0.03f);
      add(p, "self_attn.o_proj.weight", VCUDA_Q4, H, HEADS * DIM, 0, 0.03f);
      add(p, "self_attn.q_norm.weight", VCUDA_F32, DIM, 0, 0.4f, 0.3f);
      add(p, "self_attn.k_norm.weight", VCUDA_F32, DIM, 0, 0.4f, 0.3f);
    }
  }
}

static const uint8_t kinds[LAYERS] = {VCUDA_LAYER_GDN, VCUDA_LAYER_ATTENTION};

static vcuda_config config(void) {
  vcuda_config c;
  memset(&c, 0, sizeof c);
  c.struct_size = sizeof c;
  c.hidden = H, c.intermediate = I, c.vocab = V, c.layers = LAYERS;
  c.q_heads = HEADS, c.kv_heads = 1, c.head_dim = DIM, c.rotary_dim = 8;
  c.gdn_k_heads = HEADS, c.gdn_v_heads = HEADS, c.gdn_k_dim = DIM, c.gdn_v_dim = DIM,
  c.conv_kernel = 4;
  c.rms_eps = 1e-6f;
  c.layer_kinds = kinds;
  return c;
}

static vcuda_status load(vcuda_dev* dev, const vcuda_config* c, int context) {
  vcuda_model_desc d;
  memset(&d, 0, sizeof d);
  d.struct_size = sizeof d;
  d.context = context;
  d.config = c;
  d.tensors = tensors;
  d.tensor_count = count;
  return vcuda_dev_model_load(dev, &d);
}

/* Every part of the state, one after the other. */
static size_t snapshot(vcuda_dev* dev, char* to, size_t room) {
  size_t used = 0;
  for (int l = 0; l < LAYERS; ++l)
    for (int kind = kinds[l] == VCUDA_LAYER_GDN ? 0 : 2, end = kind + 2; kind < end; ++kind) {
      uint64_t size = 0;
      expect(vcuda_dev_model_state_read(dev, l, kind, NULL, 0, &size) == VCUDA_OK,
             "state_read tells its size");
      if (used + size > room) abort();
      if (size)
        expect(vcuda_dev_model_state_read(dev, l, kind, to + used, size, NULL) == VCUDA_OK,
               "state_read");
      used += size;
    }
  return used;
}

static float h[8 * H], logits[8 * V], h_one[H], logits_one[V];
static char before[1 << 20], after[1 << 20];

static void expect_unchanged(vcuda_dev* dev, size_t size, const char* what) {
  expect(snapshot(dev, after, sizeof after) == size && memcmp(before, after, size) == 0, what);
}

static void test_refusals(vcuda_dev* dev) {
  const int32_t tokens[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, bad[2] = {1, V};
  const vcuda_config c = config();
  vcuda_model_info info;
  memset(&info, 0, sizeof info);
  info.struct_size = sizeof info;
  size_t size;

  expect_refusal(vcuda_dev_model_step(dev, 1, h, logits), VCUDA_E_ARGUMENT, "no model",
                 "a step without a model");
  unsetenv("VLLM_CUDA_Q35_MM");
  make_tensors(VCUDA_Q4);
  expect(load(dev, &c, 8) == VCUDA_OK, "load");
  expect(vcuda_dev_model_step(dev, 1, h, logits) == VCUDA_OK, "step");
  size = snapshot(dev, before, sizeof before);
  expect_refusal(vcuda_dev_model_step_m(dev, 2, tokens, h, logits), VCUDA_E_UNSUPPORTED,
                 "VLLM_CUDA_Q35_MM", "step_m, gate unset");
  expect_refusal(vcuda_dev_model_mark(dev), VCUDA_E_UNSUPPORTED, "VLLM_CUDA_Q35_MM",
                 "mark, gate unset");
  expect_refusal(vcuda_dev_model_rollback(dev), VCUDA_E_UNSUPPORTED, "VLLM_CUDA_Q35_MM",
                 "rollback, gate unset");
  expect_unchanged(dev, size, "the state after refusals with the gate unset");
  setenv("VLLM_CUDA_Q35_MM", "one", 1);
  expect_refusal(load(dev, &c, 8), VCUDA_E_ARGUMENT, "VLLM_CUDA_Q35_MM is 'one'",
                 "a gate that is no number");
  expect_refusal(vcuda_dev_model_step(dev, 1, h, logits), VCUDA_E_ARGUMENT, "no model",
                 "no model after a failed load");

  setenv("VLLM_CUDA_Q35_MM", "4", 1);
  expect(load(dev, &c, 8) == VCUDA_OK, "load with 4 rows");
  expect(vcuda_dev_model_info(dev, &info) == VCUDA_OK && info.mmax == 4 && info.position == 0 &&
             info.context == 8,
         "info");
  for (int i = 0; i < 3; ++i) expect(vcuda_dev_model_step(dev, i, h, logits) == VCUDA_OK, "step");
  size = snapshot(dev, before, sizeof before);
  memset(h, 0x5a, sizeof h);
  expect_refusal(vcuda_dev_model_step_m(dev, 1, tokens, h, logits), VCUDA_E_ARGUMENT, "M is 1",
                 "M below 2");
  expect_refusal(vcuda_dev_model_step_m(dev, 5, tokens, h, logits), VCUDA_E_ARGUMENT, "M is 5",
                 "M over mmax");
  expect_refusal(vcuda_dev_model_step_m(dev, 2, bad, h, logits), VCUDA_E_ARGUMENT, "token 1 is 128",
                 "a token outside the vocabulary");
  expect_refusal(vcuda_dev_model_step_m(dev, 2, NULL, h, logits), VCUDA_E_ARGUMENT, "NULL",
                 "no tokens");
  expect_refusal(vcuda_dev_model_step(dev, -1, h, logits), VCUDA_E_ARGUMENT, "token 0 is -1",
                 "a negative token");
  expect_refusal(vcuda_dev_model_rollback(dev), VCUDA_E_NO_MARK, "no mark",
                 "rollback without a mark");
  expect_refusal(vcuda_dev_model_state_read(dev, 0, VCUDA_STATE_KEYS, NULL, 0, NULL),
                 VCUDA_E_ARGUMENT, "GDN", "keys of a GDN layer");
  expect_refusal(vcuda_dev_model_state_read(dev, 2, 0, NULL, 0, NULL), VCUDA_E_ARGUMENT,
                 "layer is 2", "a layer that is not there");
  expect_unchanged(dev, size, "the state after refused calls");
  for (size_t i = 0; i < sizeof h; ++i)
    if (((char*)h)[i] != 0x5a) {
      expect(0, "a refused call writes no output");
      break;
    }

  /* Context: 3 of 8 used; 4 fit, then 4 more do not, 1 does, another does not. */
  expect(vcuda_dev_model_step_m(dev, 4, tokens, h, logits) == VCUDA_OK, "step_m after refusals");
  size = snapshot(dev, before, sizeof before);
  expect_refusal(vcuda_dev_model_step_m(dev, 4, tokens, h, logits), VCUDA_E_CONTEXT_FULL, "7 of 8",
                 "context full");
  expect_unchanged(dev, size, "the state after a full context");
  expect(vcuda_dev_model_step(dev, 1, h, logits) == VCUDA_OK, "the last position");
  expect_refusal(vcuda_dev_model_step(dev, 1, h, logits), VCUDA_E_CONTEXT_FULL, "8 of 8",
                 "one past the last position");

  /* One rollback a mark; reset drops the mark. */
  expect(vcuda_dev_model_reset(dev) == VCUDA_OK && vcuda_dev_model_mark(dev) == VCUDA_OK, "mark");
  size = snapshot(dev, before, sizeof before);
  expect(vcuda_dev_model_step_m(dev, 3, tokens, h, logits) == VCUDA_OK &&
             vcuda_dev_model_step(dev, 5, h_one, logits_one) == VCUDA_OK,
         "steps after a mark");
  expect(vcuda_dev_model_rollback(dev) == VCUDA_OK, "rollback");
  expect_unchanged(dev, size, "the state after a rollback");
  expect_refusal(vcuda_dev_model_rollback(dev), VCUDA_E_NO_MARK, "no mark", "a second rollback");
  expect_unchanged(dev, size, "the state after a second rollback");
  expect(vcuda_dev_model_mark(dev) == VCUDA_OK && vcuda_dev_model_reset(dev) == VCUDA_OK,
         "mark, reset");
  expect_refusal(vcuda_dev_model_rollback(dev), VCUDA_E_NO_MARK, "no mark",
                 "rollback of a mark before the reset");

  /* A float32 projection runs single steps and is refused in batches. */
  make_tensors(VCUDA_F32);
  expect(load(dev, &c, 8) == VCUDA_OK && vcuda_dev_model_step(dev, 1, h, logits) == VCUDA_OK,
         "a float32 projection, one token");
  size = snapshot(dev, before, sizeof before);
  expect_refusal(vcuda_dev_model_step_m(dev, 2, tokens, h, logits), VCUDA_E_UNSUPPORTED,
                 "model.layers.0.linear_attn.out_proj.weight", "a float32 projection, two rows");
  expect_unchanged(dev, size, "the state after a refused batch");

  /* An infinity in the head: the step is refused and undone, the next step is refused too, the
   * state stays. */
  make_tensors(VCUDA_Q4);
  static float head[V * H];
  for (int i = 0; i < V * H; ++i) head[i] = i == 5 * H + 3 ? INFINITY : 0.01f;
  for (uint64_t i = 0; i < count; ++i)
    if (strcmp(tensors[i].name, "lm_head.weight") == 0)
      tensors[i].type = VCUDA_F32, tensors[i].data = head;
  expect(load(dev, &c, 8) == VCUDA_OK, "load");
  size = snapshot(dev, before, sizeof before);
  expect_refusal(vcuda_dev_model_step(dev, 1, h, logits), VCUDA_E_NONFINITE, "position 0",
                 "an infinity in the logits");
  expect_unchanged(dev, size, "the state after a result that is not finite");
  expect(vcuda_dev_model_info(dev, &info) == VCUDA_OK && info.position == 0,
         "the position after it");
}

static void test_model_checks(vcuda_dev* dev) {
  const vcuda_config good = config();
  vcuda_config c = good;
  setenv("VLLM_CUDA_Q35_MM", "8", 1);
  make_tensors(VCUDA_Q4);
  tensors[2].shape[0] = V - 1;
  expect_refusal(load(dev, &good, 8), VCUDA_E_MODEL,
                 "lm_head.weight: shape is [127, 64], expected [128, 64]", "a wrong shape");
  make_tensors(VCUDA_Q4);
  --count;
  expect_refusal(load(dev, &good, 8), VCUDA_E_MODEL,
                 "model.layers.1.self_attn.k_norm.weight: missing", "a missing tensor");
  make_tensors(VCUDA_Q4);
  add("", "model.extra.weight", VCUDA_F32, H, 0, 0, 1);
  expect_refusal(load(dev, &good, 8), VCUDA_E_MODEL, "model.extra.weight: not a tensor",
                 "a tensor too many");
  make_tensors(VCUDA_Q4);
  tensors[1].type = VCUDA_Q4;
  expect_refusal(load(dev, &good, 8), VCUDA_E_MODEL, "model.norm.weight: is Q4", "a norm in Q4");
  make_tensors(VCUDA_Q4);
  tensors[1].type = 9;
  expect_refusal(load(dev, &good, 8), VCUDA_E_MODEL, "type 9", "an unknown type");
  make_tensors(VCUDA_Q4);
  add("", "model.norm.weight", VCUDA_F32, H, 0, 0, 1);
  expect_refusal(load(dev, &good, 8), VCUDA_E_MODEL, "model.norm.weight: given twice",
                 "a tensor twice");
  make_tensors(VCUDA_Q4);
  c.hidden = 48;
  expect_refusal(load(dev, &c, 8), VCUDA_E_MODEL, "hidden is 48",
                 "a hidden size that Q4 cannot group");
  c = good, c.kv_heads = 3;
  expect_refusal(load(dev, &c, 8), VCUDA_E_MODEL, "q_heads is 2", "heads that do not divide");
  c = good, c.rms_eps = NAN;
  expect_refusal(load(dev, &c, 8), VCUDA_E_MODEL, "rms_eps", "an eps that is NaN");
  expect_refusal(load(dev, &good, 0), VCUDA_E_ARGUMENT, "context is 0", "no context");
  expect(load(dev, &good, 8) == VCUDA_OK && vcuda_dev_model_step(dev, 1, h, logits) == VCUDA_OK,
         "a good model after all of that");
}

int main(void) {
  vcuda_dev* dev = NULL;
  vcuda_dev_options options;
  memset(&options, 0, sizeof options);
  expect(vcuda_abi_version() == VCUDA_ABI_VERSION, "abi_version");
  expect(vcuda_build_info()[0] == '{', "build_info is JSON");
  expect_refusal(vcuda_dev_open(&options, &dev), VCUDA_E_ARGUMENT, "struct_size",
                 "options without a size");
  options.struct_size = sizeof options;
  options.threads = -1;
  expect_refusal(vcuda_dev_open(&options, &dev), VCUDA_E_ARGUMENT, "threads is -1",
                 "a negative number of threads");
  options.threads = 2;
  expect(vcuda_dev_open(&options, &dev) == VCUDA_OK && dev != NULL, "open");
  if (dev) {
    test_refusals(dev);
    test_model_checks(dev);
    expect(vcuda_dev_close(dev) == VCUDA_OK, "close");
  }
  expect(vcuda_dev_close(NULL) == VCUDA_OK, "close of NULL");
  printf("test_abi: %d passed, %d failed\n", checks - failures, failures);
  return failures != 0;
}
