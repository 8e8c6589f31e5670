// Names in messages: lists of them, the one that was probably meant, bytes as digits, counts
// and sizes.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace taco {

// Makes "a, b" of "a"; "a" of "".
void append_name(std::string& list, std::string_view name);

// Two hexadecimal digits a byte.
std::string hex_of(std::span<const std::byte> bytes);

// "1 page", "3 pages".
std::string count_text(std::size_t count, const char* one);

// In full, by the largest unit that leaves nothing over: "3 MiB", "3073 KiB", "5 bytes".
std::string size_text(std::size_t bytes);

// The text in UTF-8, with '?' for each byte that is none, and for each control character, which a
// terminal might obey.
std::string printable(std::string_view text);

// The known name that one that is not known begins, else the nearest by edits of single characters;
// the first of several that are equally near. "" if none is near: two edits or a third of the name,
// and something is left of it.
std::string_view nearest_name(std::string_view name, std::span<const std::string_view> known);
// "; did you mean ring?", or nothing.
std::string suggestion(std::string_view name, std::span<const std::string_view> known);

}  // namespace taco
