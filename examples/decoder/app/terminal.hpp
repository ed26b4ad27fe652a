// SPDX-License-Identifier: Apache-2.0
//
// What the program says to the outside: standard output, errors and progress on standard error, signals.
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

/// Writes "oasis-decode: TEXT" as one line to standard error: control characters and what is no UTF-8 become '?', only the
/// first line of the text is shown, and of a long one its two ends. A standard error that cannot be written changes nothing.
void complain(std::string_view text) noexcept;

/// Standard streams that are closed are opened in a way in which using them fails: else the next file that is opened
/// would take their number, and what is printed would be written into it.
void hold_standard_streams() noexcept;

/// From now on Ctrl-C asks for an end (a second one ends at once), a closed pipe is an error of `put`, and a mapped file
/// that shrinks while it is read ends the program with a sentence and exit code 1.
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
