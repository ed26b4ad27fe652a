// SPDX-License-Identifier: Apache-2.0
//
// Reader of safetensors: one file, or the shards that `model.safetensors.index.json` lists.
#pragma once

#include "model/mapped_file.hpp"
#include "model/tensor.hpp"

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace oasis_decode {

/// The longest header that is read.
inline constexpr std::uint64_t kMostSafetensorsHeader = 100'000'000;

/// One file. Its header is parsed without building a document, so that a bad one costs little memory.
class SafetensorsFile final : public TensorSource {
public:
    explicit SafetensorsFile(std::filesystem::path path);

    const TensorView* find(std::string_view name) const override;
    std::vector<std::string> names() const override;
    std::string label() const override { return file_.path().string(); }
    std::span<const std::byte> bytes() const { return file_.bytes(); }

private:
    MappedFile file_;
    std::map<std::string, TensorView, std::less<>> tensors_;
};

/// The tensors of a model folder: `model.safetensors.index.json` and its shards, else `model.safetensors`.
class SafetensorsFolder final : public TensorSource {
public:
    explicit SafetensorsFolder(const std::filesystem::path& folder);

    const TensorView* find(std::string_view name) const override;
    std::vector<std::string> names() const override;
    std::string label() const override { return folder_.string(); }
    const std::vector<std::unique_ptr<SafetensorsFile>>& files() const noexcept { return files_; }

private:
    std::filesystem::path folder_;
    std::vector<std::unique_ptr<SafetensorsFile>> files_;
};

} // namespace oasis_decode
