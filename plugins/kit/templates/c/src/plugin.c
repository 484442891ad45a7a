// {{name}}: ends a request at the first of some tokens. Replace this logic by your own.
//
// Memory: a function owns its arguments and frees them. Results are allocated by malloc, and the caller frees
// them, but for lists and strings of length 0.

#include "../bindings/transform.h"
#include <stdlib.h>
#include <string.h>

#define STOP_MAX 64

static int64_t stop[STOP_MAX];
static size_t stop_count;

static bool refuse(exports_afterbay_plugin_plugin_configure_error_t *error, const char *pointer, const char *message) {
  error->tag = EXPORTS_AFTERBAY_PLUGIN_PLUGIN_CONFIGURE_ERROR_SETTING;
  transform_string_dup(&error->val.setting.pointer, pointer);
  transform_string_dup(&error->val.setting.message, message);
  return false;
}

// Reads the numbers of `"stop": [1, 2]`. Returns false unless there are 1 to STOP_MAX numbers.
static bool read_stop(const char *text, const char *end) {
  const char *key = "\"stop\"";
  while (end - text > 6 && memcmp(text, key, 6) != 0) text++;
  while (text < end && *text != '[') text++;
  stop_count = 0;
  bool inside = false;
  for (; text < end && *text != ']'; text++) {
    if (*text < '0' || *text > '9') {
      inside = false;
      continue;
    }
    if (!inside && stop_count == STOP_MAX) return false;
    if (!inside) stop[stop_count++] = 0;
    inside = true;
    stop[stop_count - 1] = stop[stop_count - 1] * 10 + (*text - '0');
  }
  return text < end && stop_count > 0;
}

void exports_afterbay_plugin_plugin_describe(exports_afterbay_plugin_plugin_description_t *ret) {
  transform_string_dup(&ret->name, "{{name}}");
  transform_string_dup(&ret->version, "0.1.0");
  transform_string_dup(&ret->settings_schema,
                       "{\"type\": \"object\", \"properties\": {\"stop\": {\"type\": \"array\", \"items\": {\"type\": \"integer\"}, "
                       "\"description\": \"The token ids that end a request.\"}}, \"required\": [\"stop\"]}");
  ret->columns = AFTERBAY_PLUGIN_TYPES_COLUMNS_OUTPUT_IDS;
  ret->wants = 0;
  ret->writes = AFTERBAY_PLUGIN_TYPES_ID_SHAPE_DELTA;
}

bool exports_afterbay_plugin_plugin_configure(transform_string_t *settings,
                                              exports_afterbay_plugin_plugin_configure_error_t *error) {
  const char *text = (const char *)settings->ptr;
  bool read = read_stop(text, text + settings->len);
  transform_string_free(settings);
  return read || refuse(error, "/stop", "must be a list of 1 to 64 token ids");
}

void exports_afterbay_plugin_plugin_open(exports_afterbay_plugin_plugin_list_opened_t *requests) {
  exports_afterbay_plugin_plugin_list_opened_free(requests);
}

static bool stops(const int64_t *ids, size_t count) {
  for (size_t i = 0; i < count; i++)
    for (size_t k = 0; k < stop_count; k++)
      if (ids[i] == stop[k]) return true;
  return false;
}

void exports_afterbay_plugin_plugin_process(exports_afterbay_plugin_plugin_batch_t *batch,
                                            exports_afterbay_plugin_plugin_list_verdict_t *ret) {
  size_t rows = batch->requests.len;
  ret->ptr = NULL;
  ret->len = 0;
  uint32_t start = 0;
  for (uint32_t row = 0; row < rows; row++) {
    uint32_t end = batch->output_ends.ptr[row];
    if (stops(batch->output_ids.ptr + start, end - start)) {
      if (!ret->ptr) ret->ptr = malloc(rows * sizeof *ret->ptr);
      if (!ret->ptr) abort();
      exports_afterbay_plugin_plugin_verdict_t *verdict = &ret->ptr[ret->len++];
      memset(verdict, 0, sizeof *verdict);
      verdict->row = row;
      verdict->action.tag = AFTERBAY_PLUGIN_TYPES_ACTION_FINISH;
      verdict->action.val.finish.reason.tag = AFTERBAY_PLUGIN_TYPES_FINISH_REASON_STOP;
      transform_string_dup(&verdict->action.val.finish.reason.val.stop, "{{name}}");
    }
    start = end;
  }
  exports_afterbay_plugin_plugin_batch_free(batch);
}

void exports_afterbay_plugin_plugin_close(exports_afterbay_plugin_plugin_list_request_id_t *requests) {
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
