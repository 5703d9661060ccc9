package config

import (
	"path/filepath"
	"reflect"
)

// ResolveFiles has relative paths of files start at a folder. Their fields have the tag file:"relative", or file:"watched" if a change of
// the file is one of the configuration: see Watched.
func (c *Config) ResolveFiles(folder string) { resolveFiles(reflect.ValueOf(c).Elem(), folder) }

func resolveFiles(v reflect.Value, folder string) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Field(i)
			if v.Type().Field(i).Tag.Get("file") == "" {
				resolveFiles(field, folder)
			} else if path := field.String(); path != "" && !filepath.IsAbs(path) {
				field.SetString(filepath.Join(folder, path))
			}
		}
	case reflect.Slice:
		for i := range v.Len() {
			resolveFiles(v.Index(i), folder)
		}
	case reflect.Pointer:
		if !v.IsNil() {
			resolveFiles(v.Elem(), folder)
		}
	}
}
