// stop-on-pattern: ends a request when its last ids match a pattern.
//
// Memory: a function owns its arguments and frees them. Results are allocated by malloc, and the caller frees
// them, but for lists and strings of length 0.

#include "../bindings/transform.h"
#include <stdlib.h>
#include <string.h>

#define PATTERN_MAX 64
#define BUCKETS 1024

static int64_t pattern[PATTERN_MAX];
static uint32_t length;
// shorter[n] is the length of the longest proper prefix of the pattern that its first n ids end with.
// Matching continues there if the next id does not match.
static uint32_t shorter[PATTERN_MAX + 1];

// A request, and the length of the prefix of the pattern that its last ids match.
struct request {
  uint64_t number;
  uint32_t matched;
  struct request *next;
};

static struct request *buckets[BUCKETS];

static struct request **find(uint64_t number) {
  struct request **slot = &buckets[number % BUCKETS];
  while (*slot && (*slot)->number != number) slot = &(*slot)->next;
  return slot;
}

// Adds an id. Returns the length of the matched prefix.
static uint32_t advance(uint32_t matched, int64_t id) {
  while (matched > 0 && (matched == length || pattern[matched] != id)) matched = shorter[matched];
  return pattern[matched] == id ? matched + 1 : 0;
}

static bool refuse(exports_afterbay_plugin_plugin_configure_error_t *error, const char *pointer, const char *message) {
  error->tag = EXPORTS_AFTERBAY_PLUGIN_PLUGIN_CONFIGURE_ERROR_SETTING;
  transform_string_dup(&error->val.setting.pointer, pointer);
  transform_string_dup(&error->val.setting.message, message);
  return false;
}

// Reads the numbers of `"pattern": [1, 2]`. Returns false unless there are 1 to PATTERN_MAX numbers.
static bool read_pattern(const char *text, const char *end) {
  const char *key = "\"pattern\"";
  size_t key_length = strlen(key);
  while (text + key_length < end && memcmp(text, key, key_length) != 0) text++;
  while (text < end && *text != '[') text++;
  length = 0;
  bool inside = false;
  for (; text < end && *text != ']'; text++) {
    if (*text < '0' || *text > '9') {
      inside = false;
      continue;
    }
    if (!inside && length == PATTERN_MAX) return false;
    if (!inside) pattern[length++] = 0;
    inside = true;
    pattern[length - 1] = pattern[length - 1] * 10 + (*text - '0');
  }
  return text < end && length > 0;
}

void exports_afterbay_plugin_plugin_describe(exports_afterbay_plugin_plugin_description_t *ret) {
  transform_string_dup(&ret->name, "stop-on-pattern");
  transform_string_dup(&ret->version, "0.1.0");
  transform_string_dup(&ret->settings_schema,
                       "{\"type\": \"object\", \"properties\": {\"pattern\": {\"type\": \"array\", \"items\": {\"type\": \"integer\"}, "
                       "\"minItems\": 1, \"maxItems\": 64, \"description\": \"The sequence of token ids that ends a request.\"}}, "
                       "\"required\": [\"pattern\"]}");
  ret->columns = AFTERBAY_PLUGIN_TYPES_COLUMNS_OUTPUT_IDS;
  ret->wants = 0;
  ret->writes = AFTERBAY_PLUGIN_TYPES_ID_SHAPE_DELTA;
}

bool exports_afterbay_plugin_plugin_configure(transform_string_t *settings,
                                              exports_afterbay_plugin_plugin_configure_error_t *error) {
  const char *text = (const char *)settings->ptr;
  bool read = read_pattern(text, text + settings->len);
  transform_string_free(settings);
  if (!read) return refuse(error, "/pattern", "must be a list of 1 to 64 token ids");
  for (uint32_t matched = 1, prefix = 0; matched < length; matched++) {
    while (prefix > 0 && pattern[prefix] != pattern[matched]) prefix = shorter[prefix];
    if (pattern[prefix] == pattern[matched]) prefix++;
    shorter[matched + 1] = prefix;
  }
  return true;
}

void exports_afterbay_plugin_plugin_open(exports_afterbay_plugin_plugin_list_opened_t *requests) {
  for (size_t at = 0; at < requests->len; at++) {
    struct request **slot = find(requests->ptr[at].request);
    if (*slot) continue;
    *slot = calloc(1, sizeof **slot);
    if (!*slot) abort();
    (*slot)->number = requests->ptr[at].request;
  }
  exports_afterbay_plugin_plugin_list_opened_free(requests);
}

void exports_afterbay_plugin_plugin_process(exports_afterbay_plugin_plugin_batch_t *batch,
                                            exports_afterbay_plugin_plugin_list_verdict_t *ret) {
  size_t rows = batch->requests.len;
  ret->ptr = NULL;
  ret->len = 0;
  uint32_t at = 0;
  for (uint32_t row = 0; row < rows; row++) {
    struct request *request = *find(batch->requests.ptr[row]);
    bool found = false;
    for (uint32_t end = batch->output_ends.ptr[row]; at < end; at++) {
      if (!request || found) continue;
      request->matched = advance(request->matched, batch->output_ids.ptr[at]);
      found = request->matched == length;
    }
    if (!found) continue;
    if (!ret->ptr) ret->ptr = malloc(rows * sizeof *ret->ptr);
    if (!ret->ptr) abort();
    exports_afterbay_plugin_plugin_verdict_t *verdict = &ret->ptr[ret->len++];
    memset(verdict, 0, sizeof *verdict);
    verdict->row = row;
    verdict->action.tag = AFTERBAY_PLUGIN_TYPES_ACTION_FINISH;
    verdict->action.val.finish.reason.tag = AFTERBAY_PLUGIN_TYPES_FINISH_REASON_STOP;
    transform_string_dup(&verdict->action.val.finish.reason.val.stop, "stop-on-pattern");
  }
  exports_afterbay_plugin_plugin_batch_free(batch);
}

void exports_afterbay_plugin_plugin_close(exports_afterbay_plugin_plugin_list_request_id_t *requests) {
  for (size_t at = 0; at < requests->len; at++) {
    struct request **slot = find(requests->ptr[at]), *ended = *slot;
    if (!ended) continue;
    *slot = ended->next;
    free(ended);
  }
  exports_afterbay_plugin_plugin_list_request_id_free(requests);
}

// The host makes these calls only if `wants` asks for them.
void exports_afterbay_plugin_plugin_changed(exports_afterbay_plugin_plugin_list_request_id_t *requests) {
  exports_afterbay_plugin_plugin_list_request_id_free(requests);
}

void exports_afterbay_plugin_plugin_pressure(void) {}

// The host makes this call only after a `call.send`.
void exports_afterbay_plugin_plugin_answered(exports_afterbay_plugin_plugin_list_answer_t *answers,
                                             exports_afterbay_plugin_plugin_list_request_verdict_t *ret) {
  exports_afterbay_plugin_plugin_list_answer_free(answers);
  ret->ptr = NULL;
  ret->len = 0;
}

void exports_afterbay_plugin_plugin_due(uint64_t time_ms, exports_afterbay_plugin_plugin_list_request_id_t *requests,
                                        exports_afterbay_plugin_plugin_list_request_verdict_t *ret) {
  exports_afterbay_plugin_plugin_list_request_id_free(requests);
  ret->ptr = NULL;
  ret->len = 0;
}

void exports_afterbay_plugin_plugin_export_state(transform_list_u8_t *ret) {
  ret->ptr = NULL;
  ret->len = 0;
}

bool exports_afterbay_plugin_plugin_import_state(transform_string_t *version, transform_list_u8_t *state,
                                                 exports_afterbay_plugin_plugin_state_error_t *error) {
  transform_string_free(version);
  transform_list_u8_free(state);
  *error = EXPORTS_AFTERBAY_PLUGIN_PLUGIN_STATE_ERROR_UNKNOWN_VERSION;
  return false;
}
