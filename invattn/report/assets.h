#pragma once

#include <string_view>

// The files of page/ and the chart library, compiled in by embed.cmake.
namespace invattn::reporting {

std::string_view page_template();  ///< HTML with {{name}} where content goes
std::string_view page_style();
std::string_view page_script();
std::string_view chart_script();  ///< Chart.js with its licence

}  // namespace invattn::reporting
