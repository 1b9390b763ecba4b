/* vllm_cuda: a decoder step for the hybrid Qwen3.5 text model (Gated DeltaNet + full attention,
 * 4-bit weights).
 *
 * One header for every backend. C99. Conventions:
 *
 * - Every call but vcuda_abi_version, vcuda_build_info and vcuda_last_error returns a vcuda_status;
 *   after one other than VCUDA_OK, vcuda_last_error() says why, in one line.
 *
 * - No call aborts, exits, prints or throws; a refused call leaves the model's state byte for byte
 *   as it was.
 *
 * - A struct's first field is its own size in bytes as the caller was compiled: fields are only
 *   ever appended.
 *
 * - Calls on one vcuda_dev come from one thread at a time; different devs are independent.
 *
 * Shapes are row-major. H hidden, V vocabulary, I intermediate, D head size, dk / dv GDN key /
 * value head size, conv_dim = 2*Hk*dk + Hv*dv, K convolution taps. Float data is IEEE float32
 * unless a type says otherwise.
 */
#ifndef VLLM_CUDA_H
#define VLLM_CUDA_H

#include <stdint.h>

#if defined(_WIN32)
#define VCUDA_API __declspec(dllexport)
#else
#define VCUDA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Raised only when an existing entry or field changes meaning; additions keep it. */
#define VCUDA_ABI_VERSION 1

typedef enum vcuda_status {
  VCUDA_OK = 0,
  VCUDA_E_ARGUMENT = 1, /* NULL, a token outside the vocabulary, M out of range, a struct size */
  VCUDA_E_MODEL = 2,    /* a tensor is missing, or its shape or type is not the configuration's */
  VCUDA_E_UNSUPPORTED = 3,  /* M rows not enabled (VLLM_CUDA_Q35_MM), or one over a float32
                               projection; no such ISA */
  VCUDA_E_CONTEXT_FULL = 4, /* the attention cache has no room for the rows asked for */
  VCUDA_E_NO_MARK = 5,      /* rollback without a mark, or a second rollback of one mark */
  VCUDA_E_NONFINITE = 6,    /* a NaN or an infinity in the step's result, or inputs of a 4-bit
                               projection from 2^109 up; the step is undone */
  VCUDA_E_MEMORY = 7,       /* out of host or device memory */
  VCUDA_E_DEVICE = 8,       /* no usable device, or the device reported an error */
  VCUDA_E_INTERNAL = 9      /* a defect of the library */
} vcuda_status;

typedef enum vcuda_type {
  VCUDA_F32 = 0,
  VCUDA_F16 = 1,
  VCUDA_BF16 = 2,
  VCUDA_Q4 = 3 /* groups of 32 along the last dimension: value = (nibble - 8) * scale.
                  data: uint8 [rows, cols/2], column 2j in the low nibble of byte j, 2j+1 in the
                  high one; scales: float16 [rows, cols/32] */
} vcuda_type;

typedef enum vcuda_layer_kind { VCUDA_LAYER_GDN = 0, VCUDA_LAYER_ATTENTION = 1 } vcuda_layer_kind;

/* What state_read hands out, per layer; the layout is the same for every backend. Keys are those
 * after norm and rotary; position is the cursor. */
typedef enum vcuda_state_kind {
  VCUDA_STATE_S = 0,     /* GDN: float32 [Hv, dk, dv], the recurrent state */
  VCUDA_STATE_CONV = 1,  /* GDN: float32 [conv_dim, K-1], inputs of the convolution, oldest first */
  VCUDA_STATE_KEYS = 2,  /* attention: float32 [Hkv, position, D] */
  VCUDA_STATE_VALUES = 3 /* attention: float32 [Hkv, position, D] */
} vcuda_state_kind;

/* What an operation of the last step left, per layer: float32 [m, columns]. In the order of the
 * forward pass. */
typedef enum vcuda_tap_kind {
  VCUDA_TAP_INPUT_NORM = 0, /* [m, H] input_layernorm's output */
  VCUDA_TAP_IN_PROJ = 1,    /* GDN: [m, conv_dim + Hv*dv + 2*Hv] qkv | z | b | a;
                               attention: [m, 2*Hq*D + 2*Hkv*D] a head's query, gate; keys; values */
  VCUDA_TAP_MIXER = 2, /* [m, Hv*dv or Hq*D] the mixer's output, input of its last projection */
  VCUDA_TAP_MIXER_RESIDUAL = 3, /* [m, H] residual stream with the mixer added */
  VCUDA_TAP_POST_NORM = 4,      /* [m, H] post_attention_layernorm's output */
  VCUDA_TAP_GATE_UP = 5,        /* [m, 2*I] gate rows, then up rows */
  VCUDA_TAP_SWIGLU = 6,         /* [m, I] silu(gate) * up */
  VCUDA_TAP_RESIDUAL = 7        /* [m, H] residual stream after the layer */
} vcuda_tap_kind;

/* One device (or CPU thread pool) and at most one model on it. */
typedef struct vcuda_dev vcuda_dev;

typedef struct vcuda_dev_options {
  uint32_t struct_size;
  int32_t device;  /* index of the CUDA device; ignored by the CPU backend */
  int32_t threads; /* CPU backend: 0 = one per available core; never changes a bit */
} vcuda_dev_options;

/* A tensor whose bytes the library makes itself (data == NULL), from a counter-based generator:
 * arith/synth.h defines every bit of it, so each backend and the harness make the same weights. */
typedef struct vcuda_synth {
  uint64_t seed;
  uint64_t key; /* names the tensor: FNV-1a (64 bit) of its name */
  float offset; /* float tensors: uniform in [offset - scale, offset + scale); unused for Q4 */
  float scale;  /* Q4: group scales uniform in [0.75, 1.25) * scale with a random sign, weights
                   uniform in -8..7 */
} vcuda_synth;

typedef struct vcuda_tensor {
  uint32_t struct_size;
  int32_t type;     /* vcuda_type */
  const char* name; /* in a text-only checkpoint: "model.layers.3.self_attn.q_proj.weight" */
  int64_t shape[4]; /* [out, in] for a matrix; unused dimensions are 0 */
  int32_t ndim;
  int32_t reserved;   /* 0 */
  const void* data;   /* little-endian, C order; only read during the call that receives it */
  const void* scales; /* Q4 only */
  vcuda_synth synth;  /* used when data is NULL */
} vcuda_tensor;

typedef struct vcuda_config {
  uint32_t struct_size;
  int32_t hidden;       /* H */
  int32_t intermediate; /* I */
  int32_t vocab;        /* V */
  int32_t layers;       /* L */
  int32_t q_heads;      /* Hq */
  int32_t kv_heads;     /* Hkv, divides Hq */
  int32_t head_dim;     /* D */
  int32_t rotary_dim;   /* R <= D, even */
  int32_t gdn_k_heads;  /* Hk */
  int32_t gdn_v_heads;  /* Hv, a multiple of Hk */
  int32_t gdn_k_dim;    /* dk */
  int32_t gdn_v_dim;    /* dv */
  int32_t conv_kernel;  /* K */
  int32_t tied;         /* 1: lm_head.weight may be absent; the head is the embedding then, which
                           must be of a head's type */
  float rms_eps;
  const uint8_t* layer_kinds; /* [L] of vcuda_layer_kind */
} vcuda_config;

/* Tensors: those of a text-only checkpoint under their names there, and "rope.inv_freq" float32
 * [R/2] where there is an attention layer. Matrices of projections and the head: Q4 or a float
 * type; the rest: a float type. */
typedef struct vcuda_model_desc {
  uint32_t struct_size;
  int32_t context; /* positions the attention cache holds, >= 1 */
  const vcuda_config* config;
  const vcuda_tensor* tensors;
  uint64_t tensor_count;
} vcuda_model_desc;

typedef struct vcuda_model_info {
  uint32_t struct_size;
  int32_t hidden, vocab, layers;
  int32_t context;       /* positions the cache holds */
  int32_t position;      /* tokens in the state; the next step's token has this position */
  int32_t mmax;          /* largest M of step_m; 0 when M rows are not enabled */
  int32_t marked;        /* 1: a rollback is possible */
  uint64_t weight_bytes; /* bytes of weights that one step reads */
  uint64_t state_bytes;  /* bytes allocated for state, snapshots included */
} vcuda_model_info;

/* ---- required -------------------------------------------------------------------------------- */

VCUDA_API int32_t vcuda_abi_version(void);
/* One JSON object: backend, bits_version, compiler, flags, architectures, revision, dirty. Static
 * storage. */
VCUDA_API const char* vcuda_build_info(void);
/* Text of this thread's last error, "" when there was none. Valid until this thread's next call. */
VCUDA_API const char* vcuda_last_error(void);

VCUDA_API vcuda_status vcuda_dev_open(const vcuda_dev_options* options, vcuda_dev** out);
VCUDA_API vcuda_status vcuda_dev_close(vcuda_dev* dev); /* frees the model too; NULL is allowed */

/* Checks every tensor against the configuration, copies the weights, resets. Replaces a model
 * loaded before: on failure the dev has no model. The environment variable VLLM_CUDA_Q35_MM, read
 * here, is mmax (2 or more); unset, the M-row step, mark and rollback are refused and nothing of
 * theirs is allocated. */
VCUDA_API vcuda_status vcuda_dev_model_load(vcuda_dev* dev, const vcuda_model_desc* desc);
VCUDA_API vcuda_status vcuda_dev_model_reset(vcuda_dev* dev); /* empty state, position 0, no mark */
VCUDA_API vcuda_status vcuda_dev_model_info(vcuda_dev* dev, vcuda_model_info* out);
/* One token in. h_out [H]: the hidden state after the final norm; logits [V]. Both are written only
 * on VCUDA_OK. */
VCUDA_API vcuda_status vcuda_dev_model_step(vcuda_dev* dev, int32_t token, float* h_out,
                                            float* logits);

/* ---- optional: a host must run a library without them ---------------------------------------- */

/* M tokens at consecutive positions, 2 <= M <= mmax: the bits of M single steps. h_out [M, H],
 * logits [M, V]. */
VCUDA_API vcuda_status vcuda_dev_model_step_m(vcuda_dev* dev, int32_t m, const int32_t* tokens,
                                              float* h_out, float* logits);
/* Remember the state; any mix of steps may follow. A second mark replaces the first. */
VCUDA_API vcuda_status vcuda_dev_model_mark(vcuda_dev* dev);
/* Back to the mark, once. */
VCUDA_API vcuda_status vcuda_dev_model_rollback(vcuda_dev* dev);
/* Copy one part of one layer's state (kind: vcuda_state_kind). *needed is set to its size; with
 * buffer NULL that is all. VCUDA_E_ARGUMENT when the layer has no such part or bytes is not the
 * size. */
VCUDA_API vcuda_status vcuda_dev_model_state_read(vcuda_dev* dev, int32_t layer, int32_t kind,
                                                  void* buffer, uint64_t bytes, uint64_t* needed);

/* Back to the mark, but keep the first n rows of the M-row step that was the only step since: the
 * bits of n single steps, without their forward pass. 0 <= n <= M; uses the mark up.
 * VCUDA_E_NO_MARK when anything else happened since the mark. */
VCUDA_API vcuda_status vcuda_dev_model_rollback_to(vcuda_dev* dev, int32_t n);
/* Fill with this 32-bit word all memory whose content no later call may depend on: attention cache
 * past the cursor, state slots that are neither current nor marked, workspace. A test's tool: no
 * result may change. */
VCUDA_API vcuda_status vcuda_dev_poison(vcuda_dev* dev, uint32_t word);
/* on = 1: keep what the operations of each following step leave; 0: forget it. Costs memory and
 * time, never a bit. */
VCUDA_API vcuda_status vcuda_dev_model_taps(vcuda_dev* dev, int32_t on);
/* Copy one tap of the last step; sizes as for state_read. VCUDA_E_ARGUMENT when taps are off or no
 * step was made. */
VCUDA_API vcuda_status vcuda_dev_model_tap_read(vcuda_dev* dev, int32_t layer, int32_t kind,
                                                void* buffer, uint64_t bytes, uint64_t* needed);

#ifdef __cplusplus
}
#endif
#endif
