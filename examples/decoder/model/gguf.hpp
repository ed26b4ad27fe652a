// SPDX-License-Identifier: Apache-2.0
//
// Reader of GGUF files, versions 2 and 3, little endian. The file is mapped; metadata values stay in the mapping
// and are decoded when asked for, so that no count in a header decides how much memory is taken.
#pragma once

#include "model/mapped_file.hpp"
#include "model/tensor.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

/// The type numbers of metadata values in the file.
enum class GgufType : std::uint32_t {
    kU8 = 0,
    kI8 = 1,
    kU16 = 2,
    kI16 = 3,
    kU32 = 4,
    kI32 = 5,
    kF32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9,
    kU64 = 10,
    kI64 = 11,
    kF64 = 12
};

class GgufFile final : public TensorSource {
public:
    /// Maps and checks the whole header: every key, every tensor's range, alignment, overlap and duplicates.
    explicit GgufFile(std::filesystem::path path);

    const TensorView* find(std::string_view name) const override;
    std::vector<std::string> names() const override;
    std::string label() const override { return file_.path().string(); }

    bool has(std::string_view key) const { return values_.find(key) != values_.end(); }
    /// Typed access; empty when the key is absent, `ModelError` when it holds another type or does not fit.
    std::optional<std::int64_t> integer(std::string_view key) const;
    /// A token's id; empty when the key is absent or, as old converters wrote it, -1.
    std::optional<std::int32_t> token(std::string_view key) const;
    std::optional<double> number(std::string_view key) const;
    std::optional<bool> flag(std::string_view key) const;
    std::optional<std::string> string(std::string_view key) const;
    std::vector<std::string> strings(std::string_view key) const;   ///< empty when absent
    std::vector<std::int64_t> integers(std::string_view key) const; ///< empty when absent
    std::vector<double> numbers(std::string_view key) const;        ///< empty when absent

    /// The whole file.
    std::span<const std::byte> bytes() const { return file_.bytes(); }

private:
    struct Value {
        GgufType type = GgufType::kU8;
        GgufType element = GgufType::kU8; ///< of an array
        std::uint64_t count = 1;          ///< of an array
        std::uint64_t begin = 0;          ///< where the (first) payload lies in the file
    };

    class Cursor;
    void read_metadata(Cursor& cursor, std::uint64_t count);
    void read_tensors(Cursor& cursor, std::uint64_t count);
    Value read_value(Cursor& cursor, const std::string& key) const;
    void place_tensors();
    const Value* value(std::string_view key) const;
    std::int64_t integer_at(GgufType type, std::uint64_t offset, std::string_view key) const;
    double number_at(GgufType type, std::uint64_t offset, std::string_view key) const;

    MappedFile file_;
    std::map<std::string, Value, std::less<>> values_;
    std::map<std::string, TensorView, std::less<>> tensors_;
    std::map<std::string, std::uint64_t, std::less<>> offsets_; ///< relative to the tensor data, as the file claims
    std::uint64_t data_begin_ = 0;
};

} // namespace oasis_decode
