/* A library with the whole ABI over a toy model: each output is a hash of the tokens so far, so M rows equal M single
 * steps and a rollback gives the past back, for any configuration. One planted fault, chosen with -DFAULT="\"name\"".
 * An entry is left out by renaming it (-Dvcuda_dev_model_mark=renamed); in its place NULL_ENTRY exports one that resolves to
 * address 0, WEAK_ENTRY refers to one that nobody defines. Both are strings. A step sleeps for STEP_SLEEP_US first. */
#define _GNU_SOURCE
#include "vllm_cuda.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifndef FAULT
#define FAULT ""
#endif
#ifndef STUB_ABI_VERSION
#define STUB_ABI_VERSION VCUDA_ABI_VERSION
#endif

struct vcuda_dev {
  vcuda_config config;
  uint8_t *kinds;
  int32_t *tokens; /* [context], those before position are the state */
  int32_t context, position, mark, mmax, loaded, taps, last_m;
  int32_t kept; /* M of the only step since the mark, 0: none yet, -1: something else */
};

static char last_error[300];
static int steps;
static float *last_output, *last_part; /* of a step and of a state_read */

static int fault(const char *name) { return strcmp(FAULT, name) == 0; }

static vcuda_status fail(vcuda_status status, const char *text) {
  snprintf(last_error, sizeof last_error, "%s", text);
  return status;
}

static void crash(void) { *(volatile int *)8 = 1; }

#ifdef NULL_ENTRY
static void *resolve_to_nothing(void) { return 0; }
VCUDA_API int null_entry(void) __asm__(NULL_ENTRY) __attribute__((ifunc("resolve_to_nothing")));
#endif
#ifdef WEAK_ENTRY
extern int weak_entry(void) __asm__(WEAK_ENTRY) __attribute__((weak));
VCUDA_API int (*const stub_weak)(void) = weak_entry;
#endif

__attribute__((constructor)) static void at_load(void) {
  if (fault("load-crash")) crash();
  if (fault("load-exit")) exit(0);
}
__attribute__((destructor)) static void at_unload(void) {
  if (fault("unload-crash")) crash();
}

int32_t vcuda_abi_version(void) { return STUB_ABI_VERSION; }
const char *vcuda_build_info(void) {
  if (fault("bad-build-info")) return "release build";
  if (fault("null-build-info")) return NULL;
  if (fault("dirty")) return "{\"backend\": \"cpu\", \"revision\": \"0123456789abcdef\", \"dirty\": true}";
  return "{\"backend\": \"stub\", \"bits_version\": 1, \"fault\": \"" FAULT "\"}";
}
const char *vcuda_last_error(void) { return last_error; }

vcuda_status vcuda_dev_open(const vcuda_dev_options *options, vcuda_dev **out) {
  if (options->struct_size != sizeof *options) return fail(VCUDA_E_ARGUMENT, "options: struct size");
  if (options->threads < 0) {
    char text[100];
    snprintf(text, sizeof text, "device %d, threads %d", options->device, options->threads);
    return fail(VCUDA_E_ARGUMENT, text);
  }
  if (fault("no-device")) return fail(VCUDA_E_DEVICE, "no usable device:\n  driver too old");
  if (fault("null-device")) return VCUDA_OK;
  *out = calloc(1, sizeof **out);
  return VCUDA_OK;
}

vcuda_status vcuda_dev_close(vcuda_dev *dev) {
  if (fault("close-crash")) crash();
  if (fault("late-state") && last_part) last_part[1] = 0.5f;
  last_output = last_part = NULL;
  if (fault("close-error")) return fail(VCUDA_E_INTERNAL, "close does not work");
  if (dev != NULL) {
    free(dev->kinds);
    free(dev->tokens);
  }
  free(dev);
  return VCUDA_OK;
}

/* Allocate until nothing is left. */
static vcuda_status allocate_all(void) {
  size_t size = (size_t)64 << 20;
  for (;;) {
    void *block = malloc(size);
    if (block == NULL) return fail(VCUDA_E_MEMORY, "no memory for the weights");
    *(volatile char *)block = 1;
  }
}

vcuda_status vcuda_dev_model_load(vcuda_dev *dev, const vcuda_model_desc *desc) {
  const char *mm = getenv("VLLM_CUDA_Q35_MM");
  if (desc->struct_size != sizeof *desc || desc->config->struct_size != sizeof *desc->config)
    return fail(VCUDA_E_ARGUMENT, "model: struct size");
  if (fault("load-memory")) return fail(VCUDA_E_MEMORY, "cannot allocate 48318382080 bytes for the weights");
  if (fault("allocate-all")) return allocate_all();
  if (desc->tensor_count == 0 || desc->tensors[0].struct_size != sizeof *desc->tensors)
    return fail(VCUDA_E_MODEL, "no tensors");
  dev->config = *desc->config;
  dev->kinds = malloc(dev->config.layers);
  memcpy(dev->kinds, desc->config->layer_kinds, dev->config.layers);
  dev->context = desc->context;
  dev->tokens = malloc(sizeof *dev->tokens * desc->context);
  dev->mmax = mm == NULL ? 0 : atoi(mm);
  dev->loaded = 1;
  return vcuda_dev_model_reset(dev);
}

vcuda_status vcuda_dev_model_reset(vcuda_dev *dev) {
  dev->position = 0;
  dev->mark = -1;
  return VCUDA_OK;
}

vcuda_status vcuda_dev_model_info(vcuda_dev *dev, vcuda_model_info *out) {
  if (out->struct_size != sizeof *out) return fail(VCUDA_E_ARGUMENT, "info: struct size");
  if ((fault("late-h_out") || fault("late-logits")) && last_output) last_output[1] = 0.5f;
  out->hidden = dev->config.hidden + (fault("wrong-info") ? 1 : 0);
  out->vocab = dev->config.vocab;
  out->layers = dev->config.layers;
  out->context = dev->context;
  out->position = dev->position;
  out->mmax = dev->mmax;
  out->marked = dev->mark >= 0;
  out->weight_bytes = 1000;
  out->state_bytes = 100;
  return VCUDA_OK;
}

static uint64_t mix(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* Hash of the first n tokens. */
static uint64_t hash_of(const vcuda_dev *dev, int32_t n) {
  uint64_t h = fault("unstable") ? (uint64_t)getpid() : 1;
  int32_t first = fault("forgets") && n > 0 ? n - 1 : 0;
  for (int32_t i = first; i < n; i++) h = mix(h + 0x9e3779b97f4a7c15u * (uint64_t)(dev->tokens[i] + 1));
  return h;
}

static void fill(float *out, uint64_t hash, int64_t n) {
  for (int64_t i = 0; i < n; i++) out[i] = (float)(mix(hash + (uint64_t)i) >> 40) / 16777216.0f - 0.5f;
}

/* What goes wrong in place of a step; 0 when the step is to be made. */
static int misbehave(vcuda_status *status) {
  *status = VCUDA_OK;
  if (fault("segfault")) crash();
  if (fault("abort")) abort();
  if (fault("exit")) exit(0);
  if (fault("exit-3")) _exit(3);
  if (fault("kill")) kill(getpid(), SIGKILL);
  if (fault("hang"))
    for (;;) pause();
  if (fault("flood"))
    for (;;) write(1, "not a result, only noise ........\n", 34);
  if (fault("orphan") && fork() == 0)
    for (;;) pause();
  if (fault("prints")) {
    printf("{\"status\": \"done\"}\n");
    fflush(stdout);
    fprintf(stderr, "loading kernels\n");
  }
  if (fault("prints-and-dies")) {
    printf("ASSERTION FAILED: 1 == 2\n");
    fflush(stdout);
    abort();
  }
  if (fault("error")) *status = fail(VCUDA_E_DEVICE, "the device reported\n an illegal address");
  if (fault("odd-status")) *status = fail((vcuda_status)77, "");
  return fault("silent") || *status != VCUDA_OK;
}

static vcuda_status row(vcuda_dev *dev, int32_t token, float *h_out, float *logits) {
  vcuda_status status;
  int64_t hidden = dev->config.hidden, vocab = dev->config.vocab;
#ifdef STEP_SLEEP_US
  usleep(STEP_SLEEP_US);
#endif
  if ((token < 0 || token >= vocab) && !fault("refuses-nothing")) {
    if (fault("refuses-and-writes")) h_out[2] = 0.5f;
    if (fault("refuses-and-moves")) dev->position++;
    return fail(fault("refuses-by-accident") ? VCUDA_E_DEVICE : VCUDA_E_ARGUMENT, "token outside the vocabulary");
  }
#ifdef __SSE__
  if (fault("flushes")) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040);
  if (fault("rounds-up")) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x4000);
#endif
  if (dev->position == dev->context) return fail(VCUDA_E_CONTEXT_FULL, "the cache is full");
  if (fault("silent-later") && dev->position > 0) return ++dev->position, VCUDA_OK;
  if (token == 511) { /* the last token of the vocabulary: so one of several arms fails */
    if (fault("segfault-late")) crash();
    if (fault("exit-late")) exit(0);
    if (fault("nan-late")) return fail(VCUDA_E_NONFINITE, "NaN in the result");
    if (fault("hang-late"))
      for (;;) pause();
  }
  if (misbehave(&status)) {
    dev->position += status == VCUDA_OK;
    return status;
  }
  dev->tokens[dev->position++] = token;
  fill(h_out, hash_of(dev, dev->position), hidden);
  fill(logits, ~hash_of(dev, dev->position), fault("partial") ? vocab - 5 : vocab);
  if (fault("wrong-at-first") && dev->position == 1) logits[3] = 0.5f;
  if (fault("wrong-far-on") && dev->position > 40) logits[3] = 0.5f;
  if (fault("unstable-far-on") && dev->position > 40) logits[3] = 1.0f + (float)(getpid() & 1023);
  if (fault("wrong-by-and-by") && dev->position > 40) logits[3] = 0.5f * (float)steps++;
  if (fault("unstable-at-first") && dev->position == 1) logits[3] = 1.0f + (float)(getpid() & 1023);
  last_output = fault("late-h_out") ? h_out : logits;
  if (fault("nan")) logits[3] = NAN;
  if (fault("infinity")) h_out[1] = -INFINITY;
  if (fault("overrun")) logits[vocab + 1] = 0.5f;
  if (fault("underrun")) h_out[-1] = 0.5f;
  if (fault("wrong-position")) dev->position = 1;
  if (fault("error-writes")) return fail(VCUDA_E_INTERNAL, "late failure");
  return VCUDA_OK;
}

vcuda_status vcuda_dev_model_step(vcuda_dev *dev, int32_t token, float *h_out, float *logits) {
  vcuda_status status = row(dev, token, h_out, logits);
  dev->last_m = 1;
  if (status == VCUDA_OK) dev->kept = -1;
  return status;
}

vcuda_status vcuda_dev_model_step_m(vcuda_dev *dev, int32_t m, const int32_t *tokens, float *h_out, float *logits) {
  if (m < 2 || m > dev->mmax) return fail(VCUDA_E_UNSUPPORTED, "M rows are not enabled: set VLLM_CUDA_Q35_MM");
  for (int32_t i = 0; i < m; i++)
    if (tokens[i] < 0 || tokens[i] >= dev->config.vocab) return fail(VCUDA_E_ARGUMENT, "token outside the vocabulary");
  if (m > dev->context - dev->position) return fail(VCUDA_E_CONTEXT_FULL, "the cache is full");
  for (int32_t i = 0; i < m; i++) {
    vcuda_status status =
        row(dev, tokens[i], h_out + (int64_t)i * dev->config.hidden, logits + (int64_t)i * dev->config.vocab);
    if (status != VCUDA_OK) return status;
  }
  dev->last_m = m;
  dev->kept = dev->kept == 0 ? m : -1;
  if (fault("parts-in-layer-1") || (fault("taps-hide-it") && !dev->taps)) h_out[(int64_t)m * dev->config.hidden - 2] += 0.25f;
  if (fault("leak")) h_out[3] += 0.01f * (float)tokens[m - 1];
  if (fault("step-m-differs")) logits[(int64_t)m * dev->config.vocab - 1] *= 1.0000001f;
  return VCUDA_OK;
}

vcuda_status vcuda_dev_model_mark(vcuda_dev *dev) {
  if (dev->mmax == 0) return fail(VCUDA_E_UNSUPPORTED, "M rows are not enabled: set VLLM_CUDA_Q35_MM");
  dev->mark = dev->position;
  dev->kept = 0;
  return VCUDA_OK;
}

vcuda_status vcuda_dev_model_rollback(vcuda_dev *dev) {
  if (dev->mark < 0) return fail(VCUDA_E_NO_MARK, "no mark");
  dev->position = dev->mark;
  dev->mark = -1;
  if (fault("rollback-differs") && dev->position > 0) dev->tokens[dev->position - 1] ^= 1;
  return VCUDA_OK;
}

vcuda_status vcuda_dev_model_state_read(vcuda_dev *dev, int32_t layer, int32_t kind, void *buffer, uint64_t bytes,
                                        uint64_t *needed) {
  const vcuda_config *c = &dev->config;
  int64_t conv_dim = 2 * c->gdn_k_heads * c->gdn_k_dim + c->gdn_v_heads * c->gdn_v_dim;
  int64_t kv = (int64_t)c->kv_heads * dev->position * c->head_dim;
  int64_t sizes[4] = {(int64_t)c->gdn_v_heads * c->gdn_k_dim * c->gdn_v_dim, conv_dim * (c->conv_kernel - 1), kv, kv};
  if (layer < 0 || layer >= c->layers || kind < 0 || kind > 3 || (dev->kinds[layer] == VCUDA_LAYER_GDN) != (kind < 2))
    return fail(VCUDA_E_ARGUMENT, "the layer has no such part");
  if (fault("state-size")) sizes[kind] += 1;
  *needed = 4 * (uint64_t)sizes[kind];
  if (buffer == NULL) return VCUDA_OK;
  if (bytes != *needed) return fail(VCUDA_E_ARGUMENT, "the buffer has another size");
  if (fault("twin-layers")) layer = layer < 2 ? layer : 2;
  last_part = buffer;
  fill(buffer, hash_of(dev, dev->position) + (uint64_t)(layer * 4 + kind), sizes[kind] - (fault("state-partial") ? 1 : 0));
  return VCUDA_OK;
}

vcuda_status vcuda_dev_model_rollback_to(vcuda_dev *dev, int32_t n) {
  if (dev->mark < 0) return fail(VCUDA_E_NO_MARK, "no mark");
  if (dev->kept <= 0) return fail(VCUDA_E_NO_MARK, "an M-row step must be the only one since the mark");
  if (n < 0 || n > dev->kept) return fail(VCUDA_E_ARGUMENT, "n is out of range");
  dev->position = dev->mark + n;
  dev->mark = -1;
  return VCUDA_OK;
}

vcuda_status vcuda_dev_poison(vcuda_dev *dev, uint32_t word) {
  for (int32_t i = dev->position; i < dev->context; i++) dev->tokens[i] = (int32_t)word;
  return VCUDA_OK;
}

vcuda_status vcuda_dev_model_taps(vcuda_dev *dev, int32_t on) {
  dev->taps = on;
  dev->last_m = 0;
  return VCUDA_OK;
}

vcuda_status vcuda_dev_model_tap_read(vcuda_dev *dev, int32_t layer, int32_t kind, void *buffer, uint64_t bytes,
                                      uint64_t *needed) {
  if (!dev->taps || dev->last_m == 0) return fail(VCUDA_E_ARGUMENT, "taps are off, or no step was made");
  if (layer < 0 || layer >= dev->config.layers || kind < 0 || kind > 7) return fail(VCUDA_E_ARGUMENT, "no such tap");
  int64_t n = (int64_t)dev->last_m * dev->config.hidden;
  *needed = 4 * (uint64_t)n;
  if (buffer == NULL) return VCUDA_OK;
  if (bytes != *needed) return fail(VCUDA_E_ARGUMENT, "the buffer has another size");
  for (int32_t i = 0; i < dev->last_m; i++) /* row i is that of position - last_m + i + 1 tokens */
    fill((float *)buffer + (int64_t)i * dev->config.hidden,
         hash_of(dev, dev->position - dev->last_m + i + 1) + (uint64_t)(layer * 8 + kind + 1000), dev->config.hidden);
  if (fault("parts-in-layer-1") && dev->last_m > 1 && layer * 8 + kind >= 1 * 8 + VCUDA_TAP_POST_NORM) ((float *)buffer)[n - 7] += 0.5f;
  return VCUDA_OK;
}
