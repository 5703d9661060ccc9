// Package config is Stator's one YAML file: strict, documented, and reloadable.
//
// [Parse] sets defaults, reads the bytes over them, and reports all problems at once, each with its path,
// such as models[0].launch[1].count. The package does not open files or watch them. Defaults and checks
// come from the packages that use the values; it adds only checks that one of them cannot make alone.
//
// A *Config is read-only once parsed and may be shared between goroutines.
package config
