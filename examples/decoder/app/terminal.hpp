// SPDX-License-Identifier: Apache-2.0
//
// What the program says to the outside: standard output, progress on standard error, Ctrl-C.
#pragma once

#include <chrono>
#include <cstdint>
#include <exception>
#include <string>
#include <string_view>

namespace oasis_decode {

/// The reader of standard output went away: the program ends quietly.
class BrokenPipe : public std::exception {
public:
    const char* what() const noexcept override { return "broken pipe"; }
};

/// Writes to standard output and flushes. Throws `BrokenPipe`, or `oasis::Error` with the system's reason.
void put(std::string_view text);

/// From now on Ctrl-C asks for an end (a second one ends at once), and a closed pipe is an error of `put`.
void install_signal_handlers();
/// Whether Ctrl-C was pressed.
bool interrupted() noexcept;
/// For tests.
void set_interrupted(bool value) noexcept;

/// One line on standard error that is rewritten; nothing when standard error is no terminal.
class Progress {
public:
    Progress(std::string label, std::int64_t total);
    Progress(const Progress&) = delete;
    Progress& operator=(const Progress&) = delete;
    ~Progress();

    void advance(std::int64_t count = 1);
    /// Text after the label, such as the configuration at work.
    void note(std::string text);
    /// Wipes the line; the next `advance` draws it again.
    void clear() noexcept;

private:
    void draw();

    std::string label_;
    std::string note_;
    std::int64_t total_;
    std::int64_t done_ = 0;
    bool enabled_;
    bool colour_;
    bool drawn_ = false;
    std::chrono::steady_clock::time_point start_;
    std::chrono::steady_clock::time_point last_{};
};

} // namespace oasis_decode
