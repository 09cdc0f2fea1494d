#include "package/cubin.h"

#include <stdio.h>

/* ---- architectures ---- */

bool purr__arch_parse(const char *text, purr__arch_t *out_arch) {
  if (strncmp(text, "sm_", 3) != 0) return false;
  int number = 0, num_digits = 0;
  for (text += 3; *text >= '0' && *text <= '9' && num_digits < 4; text++, num_digits++)
    number = number * 10 + *text - '0';
  char suffix = *text;
  if (num_digits < 2 || num_digits > 3 || number < 10 || (suffix != '\0' && suffix != 'a' && suffix != 'f'))
    return false;
  if (suffix != '\0' && text[1] != '\0') return false;
  *out_arch = (purr__arch_t){number, suffix};
  return true;
}

const char *purr__arch_print(purr__arch_t arch, char text[PURR__ARCH_TEXT_BYTES]) {
  snprintf(text, PURR__ARCH_TEXT_BYTES, "sm_%d%.1s", arch.number, &arch.suffix);
  return text;
}

bool purr__arch_fits(purr__arch_t arch, int cc_major, int cc_minor) {
  int major = arch.number / 10, minor = arch.number % 10;
  if (major != cc_major) return false;
  /* A family (f) begins at its own member and has so far always been the rest of the major version. */
  return arch.suffix == 'a' ? minor == cc_minor : minor <= cc_minor;
}

int purr__arch_most_shared_bytes(purr__arch_t arch) {
  const int number = arch.number;
  if (number == 89 || (number >= 120 && number < 130)) return 99 << 10;
  if (number >= 80 && number < 90) return 163 << 10; /* 8.6 has less, but 8.7 runs its images */
  return number >= 90 && number < 120 ? 227 << 10 : 1 << 20;
}

bool purr__arch_is_better(purr__arch_t arch, purr__arch_t than) {
  int rank = arch.suffix == 'a' ? 2 : arch.suffix == 'f', than_rank = than.suffix == 'a' ? 2 : than.suffix == 'f';
  return rank != than_rank ? rank > than_rank : arch.number > than.number;
}

/* ---- ELF, as far as it is needed ---- */

enum {
  EM_CUDA = 190,
  SHT_SYMTAB = 2,
  SHT_NOTE = 7,
  SHT_NOBITS = 8,
  SHT_CUDA_INFO = 0x70000000,
  SHT_CUDA_COMPAT = 0x70000086,
  STT_FUNC = 2,
  STO_CUDA_ENTRY = 0x10,
  HEADER_BYTES = 64,
  SECTION_BYTES = 64,
  SYMBOL_BYTES = 24,
  LONGEST_NAME = 8192,
};

typedef struct section {
  const char *name;
  uint32_t type, info, link;
  uint64_t offset, bytes;
} section_t;

typedef struct reader {
  purr_context_t *context;
  purr_error_t *err;
  const char *name;
  purr__cubin_t *cubin;
  uint64_t section_offset;
  uint32_t num_sections, name_section;
  int *kernel_of_section; /* [num_sections] index of the kernel whose code it is, -1 */
  int *kernel_of_symbol;  /* [num_symbols] */
  uint64_t num_symbols;
  uint64_t unread_bytes; /* overlapping sections would cost more than the file's size */
} reader_t;

static uint16_t get16(const unsigned char *at) {
  uint16_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint32_t get32(const unsigned char *at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

static uint64_t get64(const unsigned char *at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

#define FAIL(r, ...) purr__fail((r)->err, PURR_STATUS_PACKAGE, __VA_ARGS__)

/* Whether bytes [offset, offset + bytes) are in the file. */
static bool is_inside(const reader_t *r, uint64_t offset, uint64_t bytes) {
  return offset <= r->cubin->bytes && bytes <= r->cubin->bytes - offset;
}

/* The string at `at` in a string table, NULL where it does not end in the table or is longer than any name. */
static const char *read_string(const reader_t *r, const section_t *table, uint64_t at) {
  if (at >= table->bytes) return NULL;
  uint64_t longest = table->bytes - at < LONGEST_NAME ? table->bytes - at : LONGEST_NAME;
  const unsigned char *text = r->cubin->data + table->offset + at;
  return memchr(text, 0, longest) != NULL ? (const char *)text : NULL;
}

static bool read_section_unnamed(const reader_t *r, uint32_t idx, section_t *out, uint32_t *out_name_at) {
  if (idx >= r->num_sections) return false;
  const unsigned char *at = r->cubin->data + r->section_offset + (uint64_t)idx * SECTION_BYTES;
  *out_name_at = get32(at);
  *out = (section_t){.type = get32(at + 4),
                     .offset = get64(at + 24),
                     .bytes = get64(at + 32),
                     .link = get32(at + 40),
                     .info = get32(at + 44)};
  return out->type == SHT_NOBITS || is_inside(r, out->offset, out->bytes);
}

static bool read_section(const reader_t *r, uint32_t idx, section_t *out) {
  section_t names;
  uint32_t name_at, unused;
  if (!read_section_unnamed(r, idx, out, &name_at)) return false;
  if (!read_section_unnamed(r, r->name_section, &names, &unused) || names.type == SHT_NOBITS) return false;
  out->name = read_string(r, &names, name_at);
  return out->name != NULL;
}

static purr_status_t fail_section(const reader_t *r, uint32_t idx) {
  return FAIL(r,
              "%s: section %u of %u lies outside the file's %llu bytes or has no name: the file is damaged or cut "
              "short",
              r->name, idx, r->num_sections, (unsigned long long)r->cubin->bytes);
}

static purr_status_t read_header(reader_t *r) {
  static const unsigned char fatbin[4] = {0x50, 0xed, 0x55, 0xba};
  const unsigned char *data = r->cubin->data;
  uint64_t bytes = r->cubin->bytes;
  if (bytes == 0) return FAIL(r, "%s is empty; a cubin is an ELF file", r->name);
  if (bytes >= 4 && memcmp(data, fatbin, 4) == 0)
    return FAIL(r, "%s is a fatbinary; a package holds single cubins (nvcc -cubin)", r->name);
  if (bytes < 4 || memcmp(data, "\177ELF", 4) != 0) {
    char found[40];
    return FAIL(r, "%s is not a cubin: it starts with '%s', not with an ELF header", r->name,
                purr__printable(found, sizeof found, (const char *)data, bytes < 8 ? bytes : 8));
  }
  if (bytes < HEADER_BYTES || data[4] != 2 || data[5] != 1)
    return FAIL(r, "%s is not a cubin: its ELF header is cut short or not 64-bit little-endian", r->name);
  if (get16(data + 18) != EM_CUDA)
    return FAIL(r, "%s is an ELF file for machine %d, not GPU code (machine %d)", r->name, get16(data + 18), EM_CUDA);
  r->section_offset = get64(data + 40);
  r->num_sections = get16(data + 60);
  r->name_section = get16(data + 62);
  if (get16(data + 58) != SECTION_BYTES || r->num_sections == 0)
    return FAIL(r, "%s: the ELF header describes no section table: the file is damaged", r->name);
  if (!is_inside(r, r->section_offset, (uint64_t)r->num_sections * SECTION_BYTES))
    return FAIL(r, "%s has %llu bytes, but its section table lies at byte %llu: the file is cut short", r->name,
                (unsigned long long)bytes, (unsigned long long)r->section_offset);
  const uint64_t program_offset = get64(data + 32), program_bytes = (uint64_t)get16(data + 54) * get16(data + 56);
  if (program_bytes > 0 && !is_inside(r, program_offset, program_bytes))
    return FAIL(r, "%s has %llu bytes, but its program table ends at byte %llu: the file is cut short", r->name,
                (unsigned long long)bytes, (unsigned long long)(program_offset + program_bytes));
  /* ABI version 7 (CUDA 12) keeps the architecture in the low byte of the flags, later ones in the second. */
  uint32_t flags = get32(data + 48);
  bool is_old = data[8] <= 7;
  r->cubin->arch.number = (int)(is_old ? flags & 0xff : flags >> 8 & 0xff);
  r->cubin->arch.suffix = is_old && (flags & 0x800) != 0 ? 'a' : '\0';
  return PURR_STATUS_OK;
}

/* ---- kernels ---- */

static purr_status_t count_entries(reader_t *r, const section_t *symbols, const section_t *strings, int *out_count) {
  for (int pass = 0; pass < 2; pass++) {
    int count = 0;
    for (uint64_t i = 0; i < r->num_symbols; i++) {
      const unsigned char *symbol = r->cubin->data + symbols->offset + i * SYMBOL_BYTES;
      if ((symbol[4] & 15) != STT_FUNC || (symbol[5] & STO_CUDA_ENTRY) == 0) continue;
      if (count == PURR__CUBIN_MAX_KERNELS)
        return FAIL(r, "%s has more than %d kernels", r->name, PURR__CUBIN_MAX_KERNELS);
      if (pass == 1) {
        uint32_t code = get16(symbol + 6);
        purr__cubin_kernel_t *kernel = &r->cubin->kernels[count];
        kernel->name = read_string(r, strings, get32(symbol));
        if (kernel->name == NULL || kernel->name[0] == '\0' || code >= r->num_sections ||
            r->kernel_of_section[code] != -1)
          return FAIL(r, "%s: kernel symbol %llu has no name or no code of its own: the file is damaged", r->name,
                      (unsigned long long)i);
        kernel->code_bytes = get64(symbol + 16);
        kernel->num_spills = 0;
        r->kernel_of_section[code] = count;
        r->kernel_of_symbol[i] = count;
      }
      count++;
    }
    *out_count = count;
    if (pass == 1) break;
    uint64_t bytes = (uint64_t)(count + 1) * sizeof(purr__cubin_kernel_t);
    r->cubin->kernels = purr__allocate_zeroed(r->context, bytes);
    if (r->cubin->kernels == NULL) return purr__fail_memory(r->err, "the list of kernels", bytes);
  }
  return PURR_STATUS_OK;
}

static purr_status_t find_kernels(reader_t *r) {
  section_t symbols, strings, section;
  bool found = false;
  for (uint32_t i = 0; i < r->num_sections && !found; i++) {
    if (!read_section(r, i, &section)) return fail_section(r, i);
    if (section.type != SHT_SYMTAB) continue;
    symbols = section;
    found = true;
  }
  if (!found) return FAIL(r, "%s has no symbol table, so it has no kernels", r->name);
  if (!read_section(r, symbols.link, &strings) || strings.type == SHT_NOBITS) return fail_section(r, symbols.link);
  r->num_symbols = symbols.bytes / SYMBOL_BYTES;
  uint64_t bytes = (r->num_symbols + r->num_sections) * sizeof(int);
  r->kernel_of_section = purr__allocate(r->context, bytes);
  if (r->kernel_of_section == NULL) return purr__fail_memory(r->err, "the index of a cubin", bytes);
  memset(r->kernel_of_section, 0xff, bytes);
  r->kernel_of_symbol = r->kernel_of_section + r->num_sections;
  return count_entries(r, &symbols, &strings, &r->cubin->num_kernels);
}

/* ---- .nv.info: records of a format byte, an attribute byte and 16 bits, in format 4 followed by that many bytes ----
 */

enum {
  FORMAT_SIZED = 4,
  INFO_MAX_THREADS = 0x05,
  INFO_REQUIRED_THREADS = 0x10,
  INFO_FRAME_BYTES = 0x11,
  INFO_PARAM = 0x17,
  INFO_REGISTERS = 0x2f,
  INFO_API_VERSION = 0x37,
  INFO_CLUSTER = 0x3d,
  INFO_PARAM_V2 = 0x45,
  INFO_ANNOTATIONS = 0x55,
  ANNOTATION_SPILL = 1,
  COMPAT_ACCELERATED = 0x09,
};

typedef struct record {
  int attribute;
  uint32_t value; /* the 16 bits */
  const unsigned char *payload;
  uint32_t payload_bytes;
} record_t;

/* Takes the record at *at; false at the end or where one does not fit, which `out_good` tells apart. */
static bool next_record(const unsigned char *data, uint64_t bytes, uint64_t *at, record_t *out, bool *out_good) {
  *out_good = *at == bytes;
  if (bytes - *at < 4) return false;
  const unsigned char *record = data + *at;
  *out = (record_t){.attribute = record[1], .value = get16(record + 2), .payload = record + 4};
  out->payload_bytes = record[0] == FORMAT_SIZED ? out->value : 0;
  if (bytes - *at - 4 < out->payload_bytes) return false;
  *at += 4 + (uint64_t)out->payload_bytes;
  return true;
}

static int to_int(uint32_t value) { return value > INT32_MAX ? INT32_MAX : (int)value; }

/* Attributes of the whole image that name a kernel by its symbol. */
static void take_image_record(reader_t *r, const record_t *record) {
  if (record->payload_bytes != 8) return;
  uint64_t symbol = get32(record->payload);
  int kernel = symbol < r->num_symbols ? r->kernel_of_symbol[symbol] : -1;
  if (kernel < 0) return;
  int value = to_int(get32(record->payload + 4));
  if (record->attribute == INFO_REGISTERS) r->cubin->kernels[kernel].registers = value;
  if (record->attribute == INFO_FRAME_BYTES) r->cubin->kernels[kernel].stack_bytes = value;
}

static void take_triple(const record_t *record, int out[3]) {
  for (int i = 0; i < 3; i++) out[i] = to_int(get32(record->payload + 4 * i));
}

/* The last word of a parameter's record. */
static int param_bytes(const record_t *record) {
  uint32_t last = get32(record->payload + 8);
  return (int)(record->attribute == INFO_PARAM ? last >> 18 : last & 0xffff);
}

static void take_kernel_record(purr__cubin_t *cubin, purr__cubin_kernel_t *kernel, const record_t *record) {
  int triple[3];
  switch (record->attribute) {
    case INFO_MAX_THREADS: {
      if (record->payload_bytes != 12) return;
      take_triple(record, triple);
      int64_t threads = 1;
      for (int i = 0; i < 3; i++) threads = purr__min(threads * purr__min(triple[i], 65536), 65536);
      kernel->most_threads = (int)threads;
      return;
    }
    case INFO_REQUIRED_THREADS:
      if (record->payload_bytes == 12) take_triple(record, kernel->exact_threads);
      return;
    case INFO_CLUSTER:
      if (record->payload_bytes == 12) take_triple(record, kernel->cluster);
      return;
    case INFO_PARAM:
    case INFO_PARAM_V2:
      if (record->payload_bytes != 12) return;
      kernel->num_params++;
      kernel->params_bytes = (int)purr__min((int64_t)kernel->params_bytes + param_bytes(record), INT32_MAX);
      return;
    case INFO_API_VERSION:
      if (record->payload_bytes == 4) { /* 124 is CUDA 12.4 */
        int version = to_int(get32(record->payload)) % 1000;
        cubin->toolkit = version / 10 * 1000 + version % 10 * 10;
      }
      return;
    case INFO_ANNOTATIONS:
      for (uint32_t i = 0; i + 8 <= record->payload_bytes; i += 8)
        if (get32(record->payload + i) == ANNOTATION_SPILL) kernel->num_spills++;
      return;
    default:
      return;
  }
}

static purr_status_t read_info(reader_t *r, const section_t *section, purr__cubin_kernel_t *kernel) {
  const unsigned char *data = r->cubin->data + section->offset;
  record_t record;
  bool is_good;
  for (uint64_t at = 0; next_record(data, section->bytes, &at, &record, &is_good);)
    if (kernel == NULL)
      take_image_record(r, &record);
    else
      take_kernel_record(r->cubin, kernel, &record);
  char shown[160];
  if (!is_good)
    return FAIL(r, "%s: section %s is damaged", r->name,
                purr__printable(shown, sizeof shown, section->name, strlen(section->name)));
  return PURR_STATUS_OK;
}

static purr_status_t read_kernel_info(reader_t *r, const section_t *section) {
  int idx = section->info < r->num_sections ? r->kernel_of_section[section->info] : -1;
  if (idx < 0) return PURR_STATUS_OK; /* of a function that is no kernel */
  purr__cubin_kernel_t *kernel = &r->cubin->kernels[idx];
  char shown[160];
  if (kernel->info_bytes > 0)
    return FAIL(r, "%s: kernel %s has two attribute sections", r->name,
                purr__printable(shown, sizeof shown, kernel->name, strlen(kernel->name)));
  kernel->info_offset = section->offset;
  kernel->info_bytes = section->bytes;
  return read_info(r, section, kernel);
}

/* An `a` image is marked in .nv.compat, except by CUDA 12.9; there, and where it is an `f` image, the note of the
 * command that made it tells. */
static void read_compat(reader_t *r, const section_t *section) {
  record_t record;
  bool is_good;
  for (uint64_t at = 0; next_record(r->cubin->data + section->offset, section->bytes, &at, &record, &is_good);)
    if (record.attribute == COMPAT_ACCELERATED && (record.value & 0xff) == 1) r->cubin->arch.suffix = 'a';
}

static void read_tool_note(reader_t *r, const section_t *section) {
  static const char suffixes[] = {'a', 'f'};
  for (int i = 0; i < 2 && r->cubin->arch.suffix == '\0'; i++) {
    char option[32];
    int length = snprintf(option, sizeof option, "-arch sm_%d%c ", r->cubin->arch.number, suffixes[i]);
    if (memmem(r->cubin->data + section->offset, section->bytes, option, (size_t)length) != NULL)
      r->cubin->arch.suffix = suffixes[i];
  }
}

/* From sm_90 on the sections of shared memory include what the driver reserves for itself. */
#define RESERVED_SHARED_BYTES 1024

static void read_shared(reader_t *r, const section_t *section) {
  int idx = section->info < r->num_sections ? r->kernel_of_section[section->info] : -1;
  if (idx < 0) return;
  uint64_t bytes = section->bytes;
  if (r->cubin->arch.number >= 90) bytes = bytes > RESERVED_SHARED_BYTES ? bytes - RESERVED_SHARED_BYTES : 0;
  r->cubin->kernels[idx].static_shared_bytes = bytes > INT32_MAX ? INT32_MAX : (int)bytes;
}

static bool starts_with(const char *text, const char *prefix) { return strncmp(text, prefix, strlen(prefix)) == 0; }

static purr_status_t read_sections(reader_t *r) {
  for (uint32_t i = 0; i < r->num_sections; i++) {
    section_t section;
    if (!read_section(r, i, &section)) return fail_section(r, i);
    if (section.type == SHT_NOBITS) {
      if (starts_with(section.name, ".nv.shared.")) read_shared(r, &section);
      continue;
    }
    bool is_info = section.type == SHT_CUDA_INFO, is_compat = section.type == SHT_CUDA_COMPAT;
    bool is_note = section.type == SHT_NOTE && strcmp(section.name, ".note.nv.tkinfo") == 0;
    if (!is_info && !is_compat && !is_note) continue;
    if (section.bytes > r->unread_bytes) return FAIL(r, "%s: its sections overlap: the file is damaged", r->name);
    r->unread_bytes -= section.bytes;
    purr_status_t status = PURR_STATUS_OK;
    if (is_compat) read_compat(r, &section);
    if (is_note) read_tool_note(r, &section);
    if (is_info && strcmp(section.name, ".nv.info") == 0) status = read_info(r, &section, NULL);
    if (is_info && starts_with(section.name, ".nv.info.")) status = read_kernel_info(r, &section);
    if (status != PURR_STATUS_OK) return status;
  }
  return PURR_STATUS_OK;
}

purr_status_t purr__cubin_parse(purr_context_t *context, const void *data, uint64_t bytes, const char *name,
                                purr__cubin_t *out_cubin, purr_error_t *err) {
  *out_cubin = (purr__cubin_t){.data = data, .bytes = bytes};
  reader_t r = {.context = context, .err = err, .name = name, .cubin = out_cubin, .unread_bytes = bytes};
  purr_status_t status = PURR_STATUS_OK;
  if (bytes > PURR__CUBIN_MAX_BYTES)
    status = FAIL(&r, "%s has %llu bytes; allowed are %llu", name, (unsigned long long)bytes,
                  (unsigned long long)PURR__CUBIN_MAX_BYTES);
  if (status == PURR_STATUS_OK) status = read_header(&r);
  if (status == PURR_STATUS_OK) status = find_kernels(&r);
  if (status == PURR_STATUS_OK) status = read_sections(&r);
  purr__release(context, r.kernel_of_section);
  if (status != PURR_STATUS_OK) {
    purr__cubin_free(context, out_cubin);
    return status;
  }
  /* Before CUDA 13 the image does not list its spills. */
  for (int i = 0; i < out_cubin->num_kernels; i++)
    if (out_cubin->toolkit < 13000 && out_cubin->kernels[i].stack_bytes > 0) out_cubin->kernels[i].num_spills = -1;
  return PURR_STATUS_OK;
}

void purr__cubin_free(purr_context_t *context, purr__cubin_t *cubin) {
  purr__release(context, cubin->kernels);
  *cubin = (purr__cubin_t){0};
}

const purr__cubin_kernel_t *purr__cubin_find(const purr__cubin_t *cubin, const char *name) {
  for (int i = 0; i < cubin->num_kernels; i++)
    if (strcmp(cubin->kernels[i].name, name) == 0) return &cubin->kernels[i];
  return NULL;
}

bool purr__cubin_param(const purr__cubin_t *cubin, const purr__cubin_kernel_t *kernel, int param_idx, int *out_offset,
                       int *out_bytes) {
  const unsigned char *data = cubin->data + kernel->info_offset;
  record_t record;
  bool is_good;
  for (uint64_t at = 0; next_record(data, kernel->info_bytes, &at, &record, &is_good);) {
    bool is_param = record.attribute == INFO_PARAM || record.attribute == INFO_PARAM_V2;
    if (!is_param || record.payload_bytes != 12 || get16(record.payload + 4) != param_idx) continue;
    *out_offset = get16(record.payload + 6);
    *out_bytes = param_bytes(&record);
    return true;
  }
  return false;
}
