// SPDX-License-Identifier: Apache-2.0
#include "model/gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

namespace oasis_decode {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF files are read as little endian");

constexpr std::uint64_t kMostDimensions = 4;
constexpr std::uint64_t kMostAlignment = 1 << 20;
constexpr std::uint64_t kLeastKeyBytes = 8 + 4 + 1;        // an empty name, a type, one byte
constexpr std::uint64_t kLeastTensorBytes = 8 + 4 + 4 + 8; // an empty name, no dimensions, type, offset

// 0 for strings, arrays and unknown numbers.
std::uint64_t payload_bytes(GgufType type) noexcept
{
    switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool: return 1;
    case GgufType::kU16:
    case GgufType::kI16: return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32: return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64: return 8;
    default: return 0;
    }
}

std::optional<StorageType> storage_type(std::uint32_t number) noexcept
{
    switch (number) {
    case 0: return StorageType::kF32;
    case 1: return StorageType::kF16;
    case 2: return StorageType::kQ4_0;
    case 3: return StorageType::kQ4_1;
    case 6: return StorageType::kQ5_0;
    case 7: return StorageType::kQ5_1;
    case 8: return StorageType::kQ8_0;
    case 12: return StorageType::kQ4_K;
    case 13: return StorageType::kQ5_K;
    case 14: return StorageType::kQ6_K;
    case 30: return StorageType::kBF16;
    default: return std::nullopt;
    }
}

std::string tensor_type_name(std::uint32_t number)
{
    static constexpr std::array<const char*, 31> kNames = {
        "F32",   "F16",    "Q4_0", "Q4_1", "Q4_2", "Q4_3",    "Q5_0",   "Q5_1",    "Q8_0",  "Q8_1",   "Q2_K",
        "Q3_K",  "Q4_K",   "Q5_K", "Q6_K", "Q8_K", "IQ2_XXS", "IQ2_XS", "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S",
        "IQ2_S", "IQ4_XS", "I8",   "I16",  "I32",  "I64",     "F64",    "IQ1_M",   "BF16"};
    return number < kNames.size() ? kNames[number] : "number " + std::to_string(number);
}

template <class T> T load(const MappedFile& file, std::uint64_t offset, std::string_view what)
{
    T value{};
    std::memcpy(&value, file.view(offset, sizeof value, what).data(), sizeof value);
    return value;
}

} // namespace

class GgufFile::Cursor {
public:
    Cursor(const MappedFile& file, std::uint64_t at) : file_(file), at_(at) {}

    std::uint64_t at() const noexcept { return at_; }
    std::uint64_t left() const noexcept { return file_.size() - at_; }

    template <class T> T take(std::string_view what)
    {
        const T value = load<T>(file_, at_, what);
        at_ += sizeof value;
        return value;
    }

    std::string_view take_string(std::string_view what)
    {
        const auto length = take<std::uint64_t>(what);
        const auto bytes = file_.view(at_, length, what);
        at_ += length;
        return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
    }

    void skip(std::uint64_t length, std::string_view what)
    {
        file_.view(at_, length, what);
        at_ += length;
    }

private:
    const MappedFile& file_;
    std::uint64_t at_;
};

GgufFile::GgufFile(std::filesystem::path path) : file_(std::move(path))
{
    Cursor cursor(file_, 0);
    const std::string where = label();
    if (file_.size() < 24 || std::memcmp(file_.bytes().data(), "GGUF", 4) != 0) {
        fail(where, ": not a GGUF file (", file_.size(), " bytes)");
    }
    cursor.skip(4, "magic");
    const auto version = cursor.take<std::uint32_t>("version");
    if (version != 2 && version != 3) {
        fail(where, ": GGUF version ", version, "; versions 2 and 3 (little endian) are read");
    }
    const auto tensor_count = cursor.take<std::uint64_t>("tensor count");
    const auto key_count = cursor.take<std::uint64_t>("key count");
    if (key_count > cursor.left() / kLeastKeyBytes) {
        fail(where, ": ", key_count, " metadata keys cannot fit in ", file_.size(), " bytes");
    }
    if (tensor_count > cursor.left() / kLeastTensorBytes) {
        fail(where, ": ", tensor_count, " tensors cannot fit in ", file_.size(), " bytes");
    }
    read_metadata(cursor, key_count);
    read_tensors(cursor, tensor_count);

    const std::int64_t alignment = integer("general.alignment").value_or(32);
    if (alignment < 1 || static_cast<std::uint64_t>(alignment) > kMostAlignment ||
        !std::has_single_bit(static_cast<std::uint64_t>(alignment))) {
        fail(where, ": general.alignment is ", alignment, ", not a power of two up to ", kMostAlignment);
    }
    const auto step = static_cast<std::uint64_t>(alignment);
    data_begin_ = (cursor.at() + step - 1) / step * step;
    for (const auto& [name, offset] : offsets_) {
        if (offset % step != 0) {
            fail(where, ": tensor ", legible(name), " at offset ", offset, " is not aligned to ", step, " bytes");
        }
    }
    place_tensors();
}

void GgufFile::read_metadata(Cursor& cursor, std::uint64_t count)
{
    for (std::uint64_t i = 0; i < count; ++i) {
        const std::string key(cursor.take_string("name of metadata key " + std::to_string(i)));
        const Value read = read_value(cursor, key);
        if (!values_.emplace(key, read).second) { fail(label(), ": duplicate metadata key ", legible(key)); }
    }
}

GgufFile::Value GgufFile::read_value(Cursor& cursor, const std::string& key) const
{
    const std::string what = "value of key " + legible(key);
    Value value;
    value.type = static_cast<GgufType>(cursor.take<std::uint32_t>(what));
    const bool array = value.type == GgufType::kArray;
    value.element = array ? static_cast<GgufType>(cursor.take<std::uint32_t>(what)) : value.type;
    value.count = array ? cursor.take<std::uint64_t>(what) : 1;
    value.begin = cursor.at();
    if (value.element == GgufType::kString) {
        if (value.count > cursor.left() / 8) {
            fail(label(), ": key ", legible(key), " claims ", value.count, " strings in ", cursor.left(),
                 " bytes left of the file");
        }
        for (std::uint64_t i = 0; i < value.count; ++i) { cursor.take_string(what); }
        return value;
    }
    const std::uint64_t each = payload_bytes(value.element);
    if (each == 0) {
        fail(label(), ": key ", legible(key), " has ", array ? "elements" : "a value", " of unknown type ",
             static_cast<std::uint32_t>(value.element),
             value.element == GgufType::kArray ? " (an array in an array)" : "");
    }
    if (value.count > cursor.left() / each) {
        fail(label(), ": key ", legible(key), " claims ", value.count, " elements of ", each, " bytes in ",
             cursor.left(), " bytes left of the file (", file_.size(), " bytes)");
    }
    cursor.skip(value.count * each, what);
    return value;
}

void GgufFile::read_tensors(Cursor& cursor, std::uint64_t count)
{
    for (std::uint64_t i = 0; i < count; ++i) {
        TensorView tensor;
        tensor.name = std::string(cursor.take_string("name of tensor " + std::to_string(i)));
        const std::string shown = legible(tensor.name);
        const std::string what = "description of tensor " + shown;
        const auto dimensions = cursor.take<std::uint32_t>(what);
        if (dimensions > kMostDimensions) {
            fail(label(), ": tensor ", shown, " has ", dimensions, " dimensions, more than ", kMostDimensions);
        }
        for (std::uint32_t d = 0; d < dimensions; ++d) {
            const auto extent = cursor.take<std::uint64_t>(what);
            if (extent > static_cast<std::uint64_t>(INT64_MAX)) {
                fail(label(), ": tensor ", shown, " has an extent of ", extent);
            }
            tensor.shape.insert(tensor.shape.begin(),
                                static_cast<std::int64_t>(extent)); // the file lists the innermost first
        }
        const auto type = cursor.take<std::uint32_t>(what);
        const auto known = storage_type(type);
        if (!known) {
            fail(label(), ": tensor ", shown, " is of type ", tensor_type_name(type),
                 "; F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K are read");
        }
        tensor.type = *known;
        const auto offset = cursor.take<std::uint64_t>(what);
        if (!offsets_.emplace(tensor.name, offset).second) { fail(label(), ": duplicate tensor ", shown); }
        tensors_.emplace(tensor.name, std::move(tensor));
    }
}

void GgufFile::place_tensors()
{
    struct Range {
        std::uint64_t begin, end;
        const std::string* name;
    };
    std::vector<Range> ranges;
    for (auto& [name, tensor] : tensors_) {
        const std::uint64_t offset = offsets_.at(name);
        const auto count = element_count(tensor.shape);
        const BlockLayout layout = layout_of(tensor.type);
        const std::uint64_t row = tensor.shape.empty() ? 1 : static_cast<std::uint64_t>(tensor.shape.back());
        if (!count || *count / layout.elements > UINT64_MAX / layout.bytes || row % layout.elements != 0) {
            fail(label(), ": tensor ", legible(name), " of type ", oasis_decode::name(tensor.type),
                 " cannot have shape ", tensor.shape_text());
        }
        const std::uint64_t bytes = *count / layout.elements * layout.bytes;
        if (data_begin_ > file_.size() || offset > file_.size() - data_begin_ ||
            bytes > file_.size() - data_begin_ - offset) {
            fail(label(), ": tensor ", legible(name), " at offset ", offset, " of ", bytes,
                 " bytes is past the end of the file (", file_.size(), " bytes, tensor data from ", data_begin_, ")");
        }
        tensor.bytes = file_.view(data_begin_ + offset, bytes, name);
        if (bytes > 0) { ranges.push_back({offset, offset + bytes, &name}); }
    }
    std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < ranges.size(); ++i) {
        if (ranges[i].begin < ranges[i - 1].end) {
            fail(label(), ": tensor ", legible(*ranges[i].name), " at offset ", ranges[i].begin, " overlaps tensor ",
                 legible(*ranges[i - 1].name), " (", ranges[i - 1].begin, " to ", ranges[i - 1].end, ")");
        }
    }
}

const TensorView* GgufFile::find(std::string_view name) const
{
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> GgufFile::names() const
{
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) { names.push_back(name); }
    return names;
}

const GgufFile::Value* GgufFile::value(std::string_view key) const
{
    const auto found = values_.find(key);
    return found == values_.end() ? nullptr : &found->second;
}

std::int64_t GgufFile::integer_at(GgufType type, std::uint64_t offset, std::string_view key) const
{
    switch (type) {
    case GgufType::kU8:
    case GgufType::kBool: return load<std::uint8_t>(file_, offset, key);
    case GgufType::kI8: return load<std::int8_t>(file_, offset, key);
    case GgufType::kU16: return load<std::uint16_t>(file_, offset, key);
    case GgufType::kI16: return load<std::int16_t>(file_, offset, key);
    case GgufType::kU32: return load<std::uint32_t>(file_, offset, key);
    case GgufType::kI32: return load<std::int32_t>(file_, offset, key);
    case GgufType::kI64: return load<std::int64_t>(file_, offset, key);
    case GgufType::kU64: {
        const auto wide = load<std::uint64_t>(file_, offset, key);
        if (wide > static_cast<std::uint64_t>(INT64_MAX)) { fail(label(), ": key ", key, " is ", wide, ", too large"); }
        return static_cast<std::int64_t>(wide);
    }
    default: fail(label(), ": key ", key, " is not an integer (type ", static_cast<std::uint32_t>(type), ")");
    }
}

std::optional<std::int64_t> GgufFile::integer(std::string_view key) const
{
    const Value* found = value(key);
    if (!found) { return std::nullopt; }
    return integer_at(found->type, found->begin, key);
}

std::optional<std::int32_t> GgufFile::token(std::string_view key) const
{
    const auto id = integer(key);
    if (!id || *id == -1) { return std::nullopt; }
    if (*id < 0 || *id > INT32_MAX) { fail(label(), ": key ", key, " is ", *id, ", not a token"); }
    return static_cast<std::int32_t>(*id);
}

double GgufFile::number_at(GgufType type, std::uint64_t offset, std::string_view key) const
{
    if (type == GgufType::kF32) { return load<float>(file_, offset, key); }
    if (type == GgufType::kF64) { return load<double>(file_, offset, key); }
    return static_cast<double>(integer_at(type, offset, key));
}

std::optional<double> GgufFile::number(std::string_view key) const
{
    const Value* found = value(key);
    if (!found) { return std::nullopt; }
    return number_at(found->type, found->begin, key);
}

std::optional<bool> GgufFile::flag(std::string_view key) const
{
    const Value* found = value(key);
    if (!found) { return std::nullopt; }
    if (found->type != GgufType::kBool) {
        fail(label(), ": key ", key, " is not a boolean (type ", static_cast<std::uint32_t>(found->type), ")");
    }
    return load<std::uint8_t>(file_, found->begin, key) != 0;
}

std::optional<std::string> GgufFile::string(std::string_view key) const
{
    const Value* found = value(key);
    if (!found) { return std::nullopt; }
    if (found->type != GgufType::kString) {
        fail(label(), ": key ", key, " is not a string (type ", static_cast<std::uint32_t>(found->type), ")");
    }
    Cursor cursor(file_, found->begin);
    return std::string(cursor.take_string(key));
}

std::vector<std::string> GgufFile::strings(std::string_view key) const
{
    std::vector<std::string> out;
    const Value* found = value(key);
    if (!found) { return out; }
    if (found->type != GgufType::kArray || found->element != GgufType::kString) {
        fail(label(), ": key ", key, " is not an array of strings");
    }
    Cursor cursor(file_, found->begin);
    for (std::uint64_t i = 0; i < found->count; ++i) { out.emplace_back(cursor.take_string(key)); }
    return out;
}

std::vector<std::int64_t> GgufFile::integers(std::string_view key) const
{
    std::vector<std::int64_t> out;
    const Value* found = value(key);
    if (!found) { return out; }
    if (found->type != GgufType::kArray) { fail(label(), ": key ", key, " is not an array of integers"); }
    for (std::uint64_t i = 0; i < found->count; ++i) {
        out.push_back(integer_at(found->element, found->begin + i * payload_bytes(found->element), key));
    }
    return out;
}

std::vector<double> GgufFile::numbers(std::string_view key) const
{
    std::vector<double> out;
    const Value* found = value(key);
    if (!found) { return out; }
    if (found->type != GgufType::kArray) { fail(label(), ": key ", key, " is not an array of numbers"); }
    for (std::uint64_t i = 0; i < found->count; ++i) {
        out.push_back(number_at(found->element, found->begin + i * payload_bytes(found->element), key));
    }
    return out;
}

} // namespace oasis_decode
