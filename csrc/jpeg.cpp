#include "jpeg.h"

#include <dlfcn.h>

#include <algorithm>
#include <csetjmp>
#include <cstring>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

namespace engine {
namespace {

// The library's interface, as far as it is used here. All versions of libjpeg since 6b have this in common: structures
// differ only behind these fields, and in their whole size, which the library checks. (No package has headers that fit
// the library that comes with Pillow.)

struct Decoder;

struct ErrorManager {
    void (*error_exit)(Decoder*);
    void (*emit_message)(Decoder*, int level);
    void (*output_message)(Decoder*);
    void (*format_message)(Decoder*, char*);
    void (*reset)(Decoder*);
    int message;
    union {
        int numbers[8];
        char text[80];
    } argument;
    int trace_level;
    long warnings;
    char rest[128];
};

struct Source {
    const uint8_t* next;
    std::size_t left;
    void (*init)(Decoder*);
    int (*fill)(Decoder*);
    void (*skip)(Decoder*, long bytes);
    int (*resync)(Decoder*, int wanted);
    void (*term)(Decoder*);
};

using Allocate = void* (*)(Decoder*, int pool, std::size_t bytes);
struct Memory {
    Allocate allocate;  // other functions follow
};

struct Decoder {
    ErrorManager* errors;
    Memory* memory;
    void *progress, *client;
    int is_decompressor, state;
    Source* source;
    unsigned width, height;
    int components, file_space, out_space;
    unsigned scale_numerator, scale_denominator;
    double gamma;
    int buffered, raw, dct_method, fancy_upsampling, block_smoothing, quantise;
    int of_quantising[6];
    unsigned out_width, out_height;
    int out_colors, out_components, buffer_height, actual_colors;
    void* color_map;
    unsigned out_row;
    unsigned of_scans[4];
    void* of_progression;
    void* tables[12];  // four each for quantisation, for Huffman codes of DC, and for those of AC
    char rest[2048];
};

constexpr int blue_green_red_padded = 9;  // libjpeg-turbo's colour space of four bytes for each pixel
constexpr int header_read = 1;
constexpr int permanent = 0;  // the pool of memory that is kept from picture to picture
constexpr std::size_t vector_bytes = 64;

struct Version {
    int number;
    std::size_t size;  // of its Decoder
};
constexpr Version versions[] = {{62, 632}, {80, 656}};  // 62: Pillow's wheels and Debian. 80: Ubuntu and conda-forge.

struct Library {
    ErrorManager* (*std_error)(ErrorManager*);
    void (*create)(Decoder*, int version, std::size_t size);
    void (*destroy)(Decoder*);
    int (*read_header)(Decoder*, int require_image);
    int (*start)(Decoder*);
    unsigned (*read_rows)(Decoder*, uint8_t** rows, unsigned count);
    unsigned (*skip_rows)(Decoder*, unsigned count);
    void (*crop_row)(Decoder*, unsigned* left, unsigned* width);
    int (*finish)(Decoder*);
    void (*abort)(Decoder*);
    int (*resync)(Decoder*, int wanted);
    Version version;
};
Library library{};

// The decoder that a thread keeps from picture to picture.
class Reader {
public:
    Reader() = default;
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;
    ~Reader() {
        if (created_) library.destroy(&decoder_);
    }

    bool create(const Version& version);
    bool read(const uint8_t* data, std::size_t size, const JpegHeader& header, int shrink,
              const PixelRectangle& rectangle, RowSink& sink);

private:
    static Reader& of(Decoder* decoder) { return *static_cast<Reader*>(decoder->client); }
    static void* allocate(Decoder* decoder, int pool, std::size_t bytes);

    // The tables of one picture. The library would keep them, and decode the next picture by them if it lacks its own.
    // (Nor would a new decoder for each picture have any, but to make one takes 12 us on a virtual machine, because the
    // library asks the processor what it can do.)
    struct alignas(vector_bytes) Table {
        uint8_t bytes[320];
    };
    Table tables_[std::size(Decoder{}.tables)];
    std::size_t tables_taken_ = 0;

    Decoder decoder_{};
    Allocate allocate_ = nullptr;  // the library's own
    ErrorManager errors_{};
    Source source_{};
    std::jmp_buf failed_;
    std::vector<uint8_t> rows_;  // the last rows_kept rows
    bool created_ = false;
};

bool Reader::create(const Version& version) {
    if (created_) return true;
    decoder_.errors = library.std_error(&errors_);
    errors_.error_exit = [](Decoder* decoder) { std::longjmp(of(decoder).failed_, 1); };
    errors_.emit_message = [](Decoder* decoder, int level) { decoder->errors->warnings += level < 0; };
    errors_.output_message = [](Decoder*) {};
    decoder_.client = this;
    if (setjmp(failed_)) return false;
    library.create(&decoder_, version.number, version.size);
    decoder_.source = &source_;
    source_.init = source_.term = [](Decoder*) {};
    source_.fill = [](Decoder* decoder) -> int { std::longjmp(of(decoder).failed_, 1); };  // the file is cut off
    source_.skip = [](Decoder* decoder, long bytes) {
        Source& source = *decoder->source;
        const std::size_t count = bytes > 0 ? std::min(source.left, std::size_t(bytes)) : 0;
        source.next += count;
        source.left -= count;
    };
    source_.resync = library.resync;
    allocate_ = std::exchange(decoder_.memory->allocate, allocate);
    return created_ = true;
}

// Allocates tables in tables_, and other memory by the library's function. Once the decoder is made, only tables are
// permanent.
void* Reader::allocate(Decoder* decoder, int pool, std::size_t bytes) {
    Reader& reader = of(decoder);
    const bool is_table =
        pool == permanent && bytes <= sizeof(Table) && reader.tables_taken_ < std::size(reader.tables_);
    return is_table ? &reader.tables_[reader.tables_taken_++] : reader.allocate_(decoder, pool, bytes);
}

// (After setjmp() no object with a destructor may be made, because longjmp() calls none.)
bool Reader::read(const uint8_t* data, std::size_t size, const JpegHeader& header, int shrink,
                  const PixelRectangle& rectangle, RowSink& sink) {
    source_.next = data;
    source_.left = size;
    errors_.warnings = 0;
    std::fill(std::begin(decoder_.tables), std::end(decoder_.tables), nullptr);
    tables_taken_ = 0;
    if (setjmp(failed_)) {
        library.abort(&decoder_);
        return false;
    }
    bool whole = library.read_header(&decoder_, 1) == header_read;
    whole = whole && int(decoder_.width) == header.width && int(decoder_.height) == header.height &&
            decoder_.components == header.channels;
    decoder_.out_space = blue_green_red_padded;
    decoder_.scale_numerator = 1;
    decoder_.scale_denominator = unsigned(shrink);
    whole = whole && library.start(&decoder_) && decoder_.out_components == 4;
    const int width = int(decoder_.out_width), height = int(decoder_.out_height);
    if (!whole || width != (header.width + shrink - 1) / shrink || height != (header.height + shrink - 1) / shrink) {
        library.abort(&decoder_);
        return false;
    }
    // Upsampled colours depend on their neighbours, and the library reads none beyond the columns that it decodes.
    constexpr int margin = 2;
    unsigned left = unsigned(std::max(0, rectangle.left - margin));
    unsigned columns = unsigned(std::min(width, rectangle.left + rectangle.width + margin)) - left;
    if (int(columns) < width) library.crop_row(&decoder_, &left, &columns);
    // The library writes rows that begin at whole vectors past the caches, from which they would have to be read again
    // from memory: these rows begin 4 bytes later.
    const std::size_t row_bytes =
        (std::size_t(columns) * 4 + row_slack + vector_bytes - 1) / vector_bytes * vector_bytes;
    rows_.resize(std::max(rows_.size(), rows_kept * row_bytes + 2 * vector_bytes));
    const std::size_t past = reinterpret_cast<std::uintptr_t>(rows_.data()) % vector_bytes;
    uint8_t* const rows = rows_.data() + vector_bytes - past + 4;
    uint8_t* row = rows;
    if (rectangle.top) library.skip_rows(&decoder_, unsigned(rectangle.top));
    for (int y = 0; y < rectangle.height; ++y) {
        row = rows + std::size_t(y % rows_kept) * row_bytes;
        library.read_rows(&decoder_, &row, 1);
        sink.row(row + 4 * (rectangle.left - int(left)));
    }
    // A file without an end marker is decoded to its end, because the rows behind the rectangle may be missing.
    const bool ends = size >= 2 && data[size - 2] == 0xFF && data[size - 1] == 0xD9;
    const int rest = height - rectangle.top - rectangle.height;
    if (!ends)
        for (int y = 0; y < rest; ++y) library.read_rows(&decoder_, &row, 1);
    if (rest == 0) library.finish(&decoder_);  // it checks the end of the file
    library.abort(&decoder_);
    return errors_.warnings == 0;
}

Reader& own_reader() {
    thread_local const auto reader = std::make_unique<Reader>();  // a pointer, because thread-local memory is small
    return *reader;
}

template <typename Function>
bool find(void* handle, const char* name, Function& function, std::string& missing) {
    function = reinterpret_cast<Function>(dlsym(handle, name));
    if (!function && missing.empty()) missing = std::string("it has no ") + name;
    return function != nullptr;
}

int big_endian(const uint8_t* two) { return two[0] << 8 | two[1]; }

}  // namespace

std::string load_jpeg_library(const char* path) {
    void* handle = dlopen(path, RTLD_LAZY | RTLD_LOCAL);  // never closed: decoding threads may call it until the end
    if (!handle) return dlerror();
    std::string missing;
    Library found{};
    find(handle, "jpeg_std_error", found.std_error, missing);
    find(handle, "jpeg_CreateDecompress", found.create, missing);
    find(handle, "jpeg_destroy_decompress", found.destroy, missing);
    find(handle, "jpeg_read_header", found.read_header, missing);
    find(handle, "jpeg_start_decompress", found.start, missing);
    find(handle, "jpeg_read_scanlines", found.read_rows, missing);
    find(handle, "jpeg_skip_scanlines", found.skip_rows, missing);
    find(handle, "jpeg_crop_scanline", found.crop_row, missing);
    find(handle, "jpeg_finish_decompress", found.finish, missing);
    find(handle, "jpeg_abort_decompress", found.abort, missing);
    find(handle, "jpeg_resync_to_restart", found.resync, missing);
    if (!missing.empty()) return missing;
    library = found;
    for (const Version& version : versions) {
        if (!Reader().create(version)) continue;
        library.version = version;
        return "";
    }
    library = {};
    return "it is of another version than 6.2 and 8";
}

int64_t jpeg_scans(const uint8_t* data, std::size_t size) {
    int64_t scans = 0;
    std::size_t at = 0;
    while (at + 1 < size) {
        const void* found = std::memchr(data + at, 0xFF, size - at - 1);
        if (!found) break;
        at = std::size_t(static_cast<const uint8_t*>(found) - data) + 1;
        const int marker = data[at];
        if (marker == 0xD9) break;  // the end of the picture
        const bool has_length = marker >= 0xC0 && (marker < 0xD0 || marker > 0xD8) && marker != 0xFF;
        if (!has_length) continue;  // a byte or marker among pixels
        scans += marker == 0xDA;
        ++at;
        if (at + 2 <= size) at += std::max(std::size_t(2), std::size_t(big_endian(data + at)));
    }
    return scans;
}

std::optional<JpegHeader> jpeg_header(const uint8_t* data, std::size_t size) {
    if (!library.version.number || size < 4 || data[0] != 0xFF || data[1] != 0xD8) return {};
    std::size_t at = 2;
    while (at + 4 <= size && data[at] == 0xFF) {
        const int marker = data[at + 1];
        if (marker == 0xFF) {  // a fill byte
            ++at;
            continue;
        }
        const std::size_t length = std::size_t(big_endian(data + at + 2));
        if (length < 2 || at + 2 + length > size) return {};
        const bool frame = marker >= 0xC0 && marker <= 0xCF && marker != 0xC4 && marker != 0xC8 && marker != 0xCC;
        if (!frame && (marker < 0xC4 || (marker >= 0xD0 && marker <= 0xDA))) return {};
        if (frame) {
            const uint8_t* found = data + at + 4;
            if (marker > 0xC2 || length < 8 || found[0] != 8) return {};
            JpegHeader header{big_endian(found + 3), big_endian(found + 1), found[5], 0};
            const bool known = header.width && header.height && (header.channels == 1 || header.channels == 3);
            if (!known) return {};
            header.scans = jpeg_scans(data + at, size - at);
            return header;
        }
        at += 2 + length;
    }
    return {};
}

bool read_jpeg(const uint8_t* data, std::size_t size, const JpegHeader& header, int shrink,
               const PixelRectangle& rectangle, RowSink& sink) {
    Reader& reader = own_reader();
    return reader.create(library.version) && reader.read(data, size, header, shrink, rectangle, sink);
}

}  // namespace engine
