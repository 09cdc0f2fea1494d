# What `cmake --install` puts where, and the archives that CPack makes of it. The installed tree can be moved: nothing in
# it names the folder that it was installed to.
include(CMakePackageConfigHelpers)

set(cmake_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/purr)
file(RELATIVE_PATH PURR_PC_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
string(REGEX REPLACE "/$" "" PURR_PC_PREFIX "${PURR_PC_PREFIX}")
configure_file(runtime/install/purr.pc.in runtime/install/purr.pc @ONLY)
configure_package_config_file(runtime/install/purrConfig.cmake.in runtime/install/purrConfig.cmake
                              INSTALL_DESTINATION ${cmake_package_dir})
write_basic_package_version_file(runtime/install/purrConfigVersion.cmake COMPATIBILITY SameMajorVersion)

# The program finds the library beside it, wherever the tree lies.
file(RELATIVE_PATH library_dir_from_program /${CMAKE_INSTALL_BINDIR} /${CMAKE_INSTALL_LIBDIR})
set_target_properties(purr PROPERTIES INSTALL_RPATH $ORIGIN/${library_dir_from_program})

install(TARGETS purr_library EXPORT purrTargets PUBLIC_HEADER DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS purr)
install(EXPORT purrTargets NAMESPACE purr:: DESTINATION ${cmake_package_dir})
install(FILES ${PROJECT_BINARY_DIR}/runtime/install/purrConfig.cmake
              ${PROJECT_BINARY_DIR}/runtime/install/purrConfigVersion.cmake DESTINATION ${cmake_package_dir})
install(FILES ${PROJECT_BINARY_DIR}/runtime/install/purr.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
install(DIRECTORY configs/ DESTINATION ${CMAKE_INSTALL_DATADIR}/purr/configs FILES_MATCHING PATTERN *.yaml
        PATTERN bad EXCLUDE)
install(FILES LICENSE runtime/install/LICENSE.libyaml DESTINATION ${CMAKE_INSTALL_DOCDIR})

set(CPACK_PACKAGE_NAME purr)
set(CPACK_PACKAGE_VENDOR "The Purr authors")
set(CPACK_PACKAGE_CONTACT "The Purr authors")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_GENERATOR TGZ DEB)
set(CPACK_SOURCE_GENERATOR "")
set(CPACK_STRIP_FILES ON)
set(CPACK_PACKAGE_FILE_NAME purr-${PROJECT_VERSION}-linux-${CMAKE_SYSTEM_PROCESSOR})
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION libs)
set(CPACK_DEBIAN_PACKAGE_GENERATE_SHLIBS ON)
# The dependencies are what the binaries really ask for; a test holds them to libc6.
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR}/runtime)
include(CPack)
