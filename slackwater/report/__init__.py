"""What a person sees: charts and terminal output, from plans and studies only."""
