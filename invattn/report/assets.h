#pragma once

#include <string_view>

// HTML, style and scripts of the pages, and the chart library, compiled in by embed.cmake.
namespace invattn::reporting {

// HTML with {{name}} where content goes: what all pages share, and what is between header and footer of one experiment's.
std::string_view frame_template();
std::string_view reconstruction_template();
std::string_view density_template();
std::string_view detection_template();
std::string_view study_template();

std::string_view page_style();
std::string_view shared_script();  ///< before that of the experiment
std::string_view reconstruction_script();
std::string_view density_script();
std::string_view detection_script();
std::string_view study_script();
std::string_view chart_script();  ///< Chart.js with its licence

}  // namespace invattn::reporting
