# Included by the build of a llama.cpp (CMAKE_PROJECT_INCLUDE), which it changes in two ways, so that two cores build it in
# minutes: the source files of model architectures, a hundred and more that each parse the same headers, are compiled many
# at a time (as upstream does by itself since ggml 0.26), and what is never timed is optimized less.
if(CMAKE_CURRENT_SOURCE_DIR STREQUAL CMAKE_SOURCE_DIR)
    function(ferry_build_quicker)
        if(TARGET llama)
            get_target_property(sources llama SOURCES)
            set(alone ${sources})
            list(FILTER alone EXCLUDE REGEX "(^|/)models/")
            # It has a function of the name of another one's.
            list(FILTER sources INCLUDE REGEX "(^|/)models/gemma4\\.cpp$")
            set_source_files_properties(
                ${alone} ${sources} TARGET_DIRECTORY llama PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
            set_target_properties(llama PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
        endif()
        foreach(target llama-common cpp-httplib mtmd)
            if(TARGET ${target})
                target_compile_options(${target} PRIVATE -O1)
            endif()
        endforeach()
    endfunction()
    # At the end of the top folder, when every target is there.
    cmake_language(DEFER CALL ferry_build_quicker)
endif()
