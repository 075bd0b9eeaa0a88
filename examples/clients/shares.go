// Prints what each class of a node may send and sends. With a name and a weight it sets the weight first.
//
// WEIR_URL=http://127.0.0.1:9798 WEIR_TOKEN=... go run . [NAME WEIGHT]
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	weir "weir.invalid/client"
)

func run() error {
	configuration := weir.NewConfiguration()
	configuration.Servers = weir.ServerConfigurations{{URL: os.Getenv("WEIR_URL")}}
	api := weir.NewAPIClient(configuration).DefaultAPI
	ctx := context.WithValue(context.Background(), weir.ContextAccessToken, os.Getenv("WEIR_TOKEN"))
	if len(os.Args) == 3 {
		weight, err := strconv.ParseInt(os.Args[2], 10, 32)
		if err != nil {
			return err
		}
		change := weir.NewPolicyChange(os.Args[1])
		change.SetWeight(weight)
		changes := *weir.NewSetPolicies([]weir.PolicyChange{*change})
		if _, _, err := api.PatchPolicies(ctx).SetPolicies(changes).Execute(); err != nil {
			return err
		}
	}
	classes, _, err := api.GetClasses(ctx).Execute()
	if err != nil {
		return err
	}
	for _, one := range classes {
		state := "enforced"
		if !one.Enforced {
			state = one.GetNotEnforcedBecause()
		}
		fmt.Printf("%-20s weight %3d %8.1f Mbit/s allowed, %8.1f sent: %s\n", one.Name, one.Policy.Weight,
			float64(one.Allocation)/1e6, float64(one.Rate)/1e6, state)
	}
	return nil
}

func main() {
	err := run()
	var refused *weir.GenericOpenAPIError
	if errors.As(err, &refused) {
		// A refusal is JSON with a code and a message.
		err = fmt.Errorf("%w: %s", err, refused.Body())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
