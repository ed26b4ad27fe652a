// SPDX-License-Identifier: Apache-2.0
#include "model/sentencepiece.hpp"

#include "model/mapped_file.hpp"

#include <bit>
#include <charconv>

namespace oasis_decode {
namespace {

// One message of a protocol buffer, field by field.
class Message {
public:
    enum class Wire : std::uint8_t { kVarint = 0, k64 = 1, kBytes = 2, k32 = 5 };
    struct Field {
        std::uint64_t number = 0;
        Wire wire = Wire::kVarint;
        std::uint64_t value = 0;  ///< of a varint, or the bits of a number
        std::string_view bytes{}; ///< of a text or message
    };

    Message(std::string_view bytes, std::string name) : left_(bytes), size_(bytes.size()), name_(std::move(name)) {}

    bool next(Field& field)
    {
        if (left_.empty()) { return false; }
        const std::uint64_t tag = varint();
        field = {.number = tag >> 3};
        switch (tag & 7) {
        case 0: field.value = varint(); break;
        case 1: field.value = little_endian(8); break;
        case 2: field.bytes = take(varint()); break;
        case 5: field.value = little_endian(4); break;
        default: fail(name_, ": field ", field.number, " has wire type ", tag & 7, " at byte ", size_ - left_.size());
        }
        field.wire = static_cast<Wire>(tag & 7);
        return true;
    }

    std::string_view text(const Field& field) const
    {
        expect(field, Wire::kBytes);
        return field.bytes;
    }
    std::int64_t integer(const Field& field) const
    {
        expect(field, Wire::kVarint);
        return static_cast<std::int64_t>(field.value);
    }
    float number(const Field& field) const
    {
        expect(field, Wire::k32);
        return std::bit_cast<float>(static_cast<std::uint32_t>(field.value));
    }

private:
    void expect(const Field& field, Wire wire) const
    {
        if (field.wire != wire) {
            fail(name_, ": field ", field.number, " has wire type ", static_cast<int>(field.wire), ", not ",
                 static_cast<int>(wire));
        }
    }
    std::string_view take(std::uint64_t length)
    {
        if (length > left_.size()) {
            fail(name_, ": ", length, " bytes claimed at byte ", size_ - left_.size(), ", ", left_.size(), " are left");
        }
        const std::string_view out = left_.substr(0, static_cast<std::size_t>(length));
        left_.remove_prefix(out.size());
        return out;
    }
    std::uint64_t little_endian(std::size_t bytes)
    {
        std::uint64_t out = 0;
        const std::string_view raw = take(bytes);
        for (std::size_t i = 0; i < bytes; ++i) { out |= std::uint64_t{static_cast<unsigned char>(raw[i])} << (8 * i); }
        return out;
    }
    std::uint64_t varint()
    {
        std::uint64_t out = 0;
        for (unsigned shift = 0; shift < 64; shift += 7) {
            const auto byte = static_cast<unsigned char>(take(1)[0]);
            out |= std::uint64_t{byte & 0x7FU} << shift;
            if (byte < 0x80) { return out; }
        }
        fail(name_, ": a number of more than 64 bits at byte ", size_ - left_.size());
    }

    std::string_view left_;
    std::size_t size_;
    std::string name_;
};

SentencePieceModel::Piece parse_piece(std::string_view bytes, const std::string& what)
{
    SentencePieceModel::Piece piece;
    Message message(bytes, what);
    for (Message::Field field; message.next(field);) {
        if (field.number == 1) {
            piece.text = message.text(field);
        } else if (field.number == 2) {
            piece.score = message.number(field);
        } else if (field.number == 3) {
            const std::int64_t type = message.integer(field);
            if (type < 1 || type > 6) { fail(what, ": unknown type ", type); }
            piece.type = static_cast<SentencePieceModel::Type>(type);
        }
    }
    return piece;
}

void parse_trainer(std::string_view bytes, SentencePieceModel& model, const std::string& what)
{
    std::int64_t type = 1;
    Message message(bytes, what);
    for (Message::Field field; message.next(field);) {
        if (field.number == 3) {
            type = message.integer(field);
        } else if (field.number == 24 && message.integer(field) != 0) {
            fail(what, ": treat_whitespace_as_suffix is not supported");
        } else if (field.number == 41) {
            // An int32, written with the sign of 64 bits.
            model.bos = message.integer(field);
        }
    }
    constexpr std::string_view names[] = {"unigram", "BPE", "word", "character"};
    if (type < 1 || type > 4) { fail(what, ": unknown model type ", type); }
    if (type != 2) { fail(what, ": SentencePiece model type \"", names[type - 1], "\" is not supported; \"BPE\" is"); }
}

void parse_normalizer(std::string_view bytes, SentencePieceModel& model, const std::string& what)
{
    std::string_view name = "(unnamed)";
    std::string_view map;
    bool removes = true;
    bool escapes = true;
    Message message(bytes, what);
    for (Message::Field field; message.next(field);) {
        switch (field.number) {
        case 1: name = message.text(field); break;
        case 2: map = message.text(field); break;
        case 3: model.add_dummy_prefix = message.integer(field) != 0; break;
        case 4: removes = message.integer(field) != 0; break;
        case 5: escapes = message.integer(field) != 0; break;
        default: break;
        }
    }
    if (!map.empty()) { fail(what, ": normalisation \"", legible(name), "\" is not supported; \"identity\" is"); }
    if (removes) { fail(what, ": remove_extra_whitespaces is not supported"); }
    if (!escapes) { fail(what, ": escape_whitespaces: false is not supported"); }
}

} // namespace

SentencePieceModel parse_sentencepiece(std::string_view bytes, const std::string& what)
{
    SentencePieceModel model;
    std::string_view trainer;
    std::string_view normalizer;
    Message message(bytes, what);
    for (Message::Field field; message.next(field);) {
        switch (field.number) {
        case 1:
            model.pieces.push_back(
                parse_piece(message.text(field), what + ": piece " + std::to_string(model.pieces.size())));
            break;
        case 2: trainer = message.text(field); break;
        case 3: normalizer = message.text(field); break;
        default: break;
        }
    }
    if (model.pieces.empty()) { fail(what, ": a SentencePiece model without pieces"); }
    parse_trainer(trainer, model, what + ": trainer_spec");
    parse_normalizer(normalizer, model, what + ": normalizer_spec");
    return model;
}

std::string with_spaces(std::string_view piece)
{
    std::string out;
    for (std::size_t at = 0;;) {
        const std::size_t mark = piece.find(kSpaceMark, at);
        out += piece.substr(at, mark - at);
        if (mark == std::string_view::npos) { return out; }
        out += ' ';
        at = mark + kSpaceMark.size();
    }
}

std::optional<std::uint8_t> byte_token(std::string_view piece)
{
    if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') { return std::nullopt; }
    unsigned value = 0;
    const auto [end, error] = std::from_chars(piece.data() + 3, piece.data() + 5, value, 16);
    if (error != std::errc() || end != piece.data() + 5) { return std::nullopt; }
    return static_cast<std::uint8_t>(value);
}

} // namespace oasis_decode
