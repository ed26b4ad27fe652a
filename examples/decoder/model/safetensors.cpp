// SPDX-License-Identifier: Apache-2.0
#include "model/safetensors.hpp"

#include "model/json.hpp"

#include <algorithm>
#include <cstring>
#include <set>

namespace oasis_decode {
namespace {

constexpr std::uint64_t kMostIndexBytes = 32'000'000;

struct Entry {
    std::string name;
    std::string dtype;
    std::vector<std::uint64_t> shape;
    std::vector<std::uint64_t> range;
    std::set<std::string, std::less<>> fields;
};

/// Takes the events of the JSON reader and keeps the tensors' entries; anything of another form is an error.
class HeaderReader : public nlohmann::json_sax<Json> {
public:
    HeaderReader(std::string file, std::map<std::string, Entry, std::less<>>& out) : file_(std::move(file)), out_(out)
    {
    }

    bool null() override { return unexpected("null"); }
    bool boolean(bool) override { return unexpected("a boolean"); }
    bool number_integer(number_integer_t value) override { return unexpected(std::to_string(value)); }
    bool number_float(number_float_t, const string_t& text) override { return unexpected(text); }
    bool binary(binary_t&) override { return unexpected("binary"); }

    bool number_unsigned(number_unsigned_t value) override
    {
        if (!list_) { return unexpected(std::to_string(value)); }
        if (list_->size() >= 16) { fail(where(), "more than 16 numbers in a list"); }
        list_->push_back(value);
        return true;
    }

    bool string(string_t& value) override
    {
        if (depth_ == 2 && in_metadata_) { return true; }
        if (depth_ != 2 || list_ || field_ != "dtype") { return unexpected("\"" + legible(value) + "\""); }
        entry_.dtype = value;
        return true;
    }

    bool start_object(std::size_t) override
    {
        if (list_ || depth_ >= 2) { return unexpected("an object"); }
        ++depth_;
        return true;
    }

    bool end_object() override
    {
        if (depth_ == 2 && !in_metadata_) {
            if (entry_.fields.size() != 3) { fail(where(), "needs dtype, shape and data_offsets"); }
            out_.emplace(entry_.name, std::move(entry_));
        }
        --depth_;
        return true;
    }

    bool key(string_t& key) override
    {
        if (depth_ == 1) {
            entry_ = {};
            entry_.name = key;
            in_metadata_ = key == "__metadata__";
            metadata_keys_.clear();
            if (out_.contains(key) || (in_metadata_ && std::exchange(metadata_seen_, true))) {
                fail(where(), "duplicate key");
            }
            return true;
        }
        if (in_metadata_) {
            if (!metadata_keys_.insert(key).second) { fail(where(), "duplicate key ", legible(key)); }
            return true;
        }
        field_ = key;
        if (key != "dtype" && key != "shape" && key != "data_offsets") {
            fail(where(), "unknown key ", legible(key));
        }
        if (!entry_.fields.insert(key).second) { fail(where(), "duplicate key ", key); }
        return true;
    }

    bool start_array(std::size_t) override
    {
        if (list_ || depth_ != 2 || in_metadata_ || field_ == "dtype") { return unexpected("an array"); }
        list_ = field_ == "shape" ? &entry_.shape : &entry_.range;
        return true;
    }

    bool end_array() override
    {
        list_ = nullptr;
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::json::exception& error) override
    {
        fail(file_, ": header is not valid JSON at byte ", position, ": ", legible(error.what()));
    }

private:
    std::string where() const
    {
        return file_ + (depth_ == 0 ? ": header: " : ": tensor " + legible(entry_.name) + ": ");
    }
    bool unexpected(const std::string& what) const
    {
        if (depth_ == 0) { fail(file_, ": the header is ", what, ", not an object"); }
        fail(where(), "unexpected ", what, field_.empty() ? "" : " in ", field_);
    }

    std::string file_;
    std::map<std::string, Entry, std::less<>>& out_;
    Entry entry_;
    std::string field_;
    std::set<std::string, std::less<>> metadata_keys_;
    std::vector<std::uint64_t>* list_ = nullptr;
    int depth_ = 0;
    bool in_metadata_ = false;
    bool metadata_seen_ = false;
};

StorageType storage_type(const Entry& entry, const std::string& file)
{
    if (entry.dtype == "F32") { return StorageType::kF32; }
    if (entry.dtype == "F16") { return StorageType::kF16; }
    if (entry.dtype == "BF16") { return StorageType::kBF16; }
    fail(file, ": tensor ", legible(entry.name), " is of type ", legible(entry.dtype),
         "; F32, F16 and BF16 are read");
}

TensorView place(const Entry& entry, const MappedFile& file, std::uint64_t data_begin)
{
    const std::string label = file.path().string();
    const std::string shown = legible(entry.name);
    TensorView tensor;
    tensor.name = entry.name;
    tensor.type = storage_type(entry, label);
    for (const std::uint64_t extent : entry.shape) {
        if (extent > static_cast<std::uint64_t>(INT64_MAX)) {
            fail(label, ": tensor ", shown, " has an extent of ", extent);
        }
        tensor.shape.push_back(static_cast<std::int64_t>(extent));
    }
    const std::uint64_t room = file.size() - data_begin;
    if (entry.range.size() != 2) {
        fail(label, ": tensor ", shown, ": data_offsets holds ", entry.range.size(), " numbers, not 2");
    }
    const std::uint64_t begin = entry.range[0];
    const std::uint64_t end = entry.range[1];
    if (begin > end) { fail(label, ": tensor ", shown, " begins at offset ", begin, " after its end ", end); }
    if (end > room) {
        fail(label, ": tensor ", shown, " at offset ", begin, " of ", end - begin,
             " bytes is past the end of the file (", file.size(), " bytes, tensor data from ", data_begin, ")");
    }
    const auto count = element_count(tensor.shape);
    const std::uint64_t each = layout_of(tensor.type).bytes;
    if (!count || *count > UINT64_MAX / each || *count * each != end - begin) {
        fail(label, ": tensor ", shown, " of shape ", tensor.shape_text(), " and type ", entry.dtype,
             " does not fill its ", end - begin, " bytes");
    }
    tensor.bytes = file.view(data_begin + begin, end - begin, entry.name);
    return tensor;
}

void refuse_overlap(const std::map<std::string, TensorView, std::less<>>& tensors, const std::string& label)
{
    std::vector<const TensorView*> order;
    for (const auto& [name, tensor] : tensors) {
        if (!tensor.bytes.empty()) { order.push_back(&tensor); }
    }
    std::sort(order.begin(), order.end(),
              [](const TensorView* a, const TensorView* b) { return a->bytes.data() < b->bytes.data(); });
    for (std::size_t i = 1; i < order.size(); ++i) {
        if (order[i]->bytes.data() < order[i - 1]->bytes.data() + order[i - 1]->bytes.size()) {
            fail(label, ": tensor ", legible(order[i]->name), " overlaps tensor ", legible(order[i - 1]->name));
        }
    }
}

} // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path) : file_(std::move(path))
{
    const std::string where = label();
    std::uint64_t length = 0;
    std::memcpy(&length, file_.view(0, sizeof length, "header length").data(), sizeof length);
    if (length == 0 || length > kMostSafetensorsHeader) {
        fail(where, ": header of ", length, " bytes; between 1 and ", kMostSafetensorsHeader, " are read (file size ",
             file_.size(), ")");
    }
    const auto text = file_.view(sizeof length, length, "header");
    const auto header_bytes = static_cast<std::size_t>(sizeof length + length);
    std::map<std::string, Entry, std::less<>> entries;
    HeaderReader reader(where, entries);
    const char* first = reinterpret_cast<const char*>(text.data());
    Json::sax_parse(first, first + text.size(), &reader);
    for (const auto& [name, entry] : entries) { tensors_.emplace(name, place(entry, file_, header_bytes)); }
    refuse_overlap(tensors_, where);
}

const TensorView* SafetensorsFile::find(std::string_view name) const
{
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? nullptr : &found->second;
}

std::vector<std::string> SafetensorsFile::names() const
{
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) { names.push_back(name); }
    return names;
}

SafetensorsFolder::SafetensorsFolder(const std::filesystem::path& folder) : folder_(folder)
{
    const auto index_path = folder / "model.safetensors.index.json";
    std::error_code unknown; // of a path that cannot be looked at: opening the model says why
    if (!std::filesystem::exists(index_path, unknown)) {
        files_.push_back(std::make_unique<SafetensorsFile>(folder / "model.safetensors"));
        return;
    }
    const Json index = read_json(index_path, kMostIndexBytes);
    const Json* map = member(index, "weight_map");
    if (!map || !map->is_object()) { fail(index_path.string(), ": no weight_map object"); }
    std::map<std::string, SafetensorsFile*> shards;
    for (const auto& [name, value] : map->items()) {
        const std::string shard = value.is_string() ? value.get<std::string>() : "";
        if (shard.empty() || std::filesystem::path(shard).filename() != shard || shard == "..") {
            fail(index_path.string(), ": tensor ", legible(name), " names the shard ", shown(value),
                 ", not a file of this folder");
        }
        auto& file = shards[shard];
        if (!file) {
            files_.push_back(std::make_unique<SafetensorsFile>(folder / shard));
            file = files_.back().get();
        }
        if (!file->find(name)) { fail(index_path.string(), ": tensor ", legible(name), " is not in ", shard); }
    }
    std::set<std::string> seen;
    for (const auto& file : files_) {
        for (const auto& name : file->names()) {
            if (!seen.insert(name).second) { fail(file->label(), ": tensor ", legible(name), " is in two shards"); }
        }
    }
}

const TensorView* SafetensorsFolder::find(std::string_view name) const
{
    for (const auto& file : files_) {
        if (const TensorView* tensor = file->find(name)) { return tensor; }
    }
    return nullptr;
}

std::vector<std::string> SafetensorsFolder::names() const
{
    std::vector<std::string> names;
    for (const auto& file : files_) {
        for (auto& name : file->names()) { names.push_back(std::move(name)); }
    }
    return names;
}

} // namespace oasis_decode
