// Package config is Stator's one YAML file: strict, documented, and reloadable.
//
// [Parse] sets defaults, reads the bytes over them, and reports all problems at once, each with its path,
// such as models[0].launch[1].count. The package does not open files or watch them. Defaults and checks
// are those of the packages that use the values; it adds only what one of them cannot check alone.
//
// A *Config is read-only once parsed and may be shared between goroutines.
package config
