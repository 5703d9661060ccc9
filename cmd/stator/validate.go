package main

import (
	"context"
	"errors"
	"fmt"
)

const validateAbout = `Checks a configuration file and the model files it names, and says everything that is wrong.`

func runValidate(_ context.Context, env environment, args []string) error {
	f := flags(env, "validate", validateAbout)
	file := f.String("f", "", "configuration `file`")
	if err := parse(f, args); err != nil {
		return err
	}
	if *file == "" {
		return errors.New("name the file with -f")
	}
	cfg, err := readConfig(*file)
	if err != nil {
		return err
	}
	var errs []error
	for i := range cfg.Models {
		if _, err := loadModel(cfg.Models[i].Path); err != nil {
			errs = append(errs, fmt.Errorf("models[%d].path: %w", i, err))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	fmt.Fprintf(env.out, "%s is right\n", *file)
	return nil
}
