# The tests of what depends on the processor, on processors that this machine is not: qemu's user
# emulation of old and new ones. They are slow, so they run only when asked for:
#   cmake --build build --target emulated && ctest --test-dir build -C emulation -L emulation
# Each processor is named with the kernel set that must be chosen on it.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(processors qemu64=c SandyBridge=c Haswell=avx2)
else()
  set(processors cortex-a53=neon neoverse-n1=neon-dotprod max=neon-bf16)
endif()
set(model_processors qemu64 Haswell cortex-a53 max) # the others show nothing that these do not
set(kernel_tests test_elementwise test_linear test_measure test_mixers)
add_custom_target(emulated DEPENDS calla ${kernel_tests} test_base test_oracle test_detect)

# Of the tests of a program those that `filter` matches.
function(add_emulated cpu name filter)
  add_test(NAME emulation/${cpu}/${name} COMMAND ${emulator} $<TARGET_FILE:${name}>
           CONFIGURATIONS emulation)
  set_tests_properties(emulation/${cpu}/${name} PROPERTIES LABELS emulation TIMEOUT 1800
                       ENVIRONMENT "QEMU_CPU=${cpu};CALLA_TEST_FILTER=${filter}")
endfunction()

foreach(processor ${processors})
  string(REGEX MATCH "^[^=]*" cpu ${processor})
  string(REGEX MATCH "[^=]*$" isa ${processor})
  foreach(name ${kernel_tests})
    add_emulated(${cpu} ${name} "*")
  endforeach()
  add_emulated(${cpu} test_base test_cpu_features)
  # Skipped where the pattern matcher refuses the processor (qemu64 has no SSE4.2).
  add_emulated(${cpu} test_detect "*")
  set_tests_properties(emulation/${cpu}/test_detect PROPERTIES SKIP_RETURN_CODE 77)
  # Prefill and decode of a small model by every kernel set, within the documented bounds.
  if(cpu IN_LIST model_processors)
    add_emulated(${cpu} test_oracle test_fast)
  endif()
  add_test(NAME emulation/${cpu}/program CONFIGURATIONS emulation
           COMMAND bash ${CMAKE_CURRENT_SOURCE_DIR}/emulation/program.sh ${emulated_program}
                   ${CMAKE_BINARY_DIR} ${PROJECT_SOURCE_DIR} ${isa})
  set_tests_properties(emulation/${cpu}/program PROPERTIES LABELS emulation TIMEOUT 1800
                       ENVIRONMENT QEMU_CPU=${cpu})
endforeach()
# Of another architecture's build this is the only run.
set_property(TEST scripts/one_binary APPEND PROPERTY LABELS emulation)
